-- Which entries have been idle longest?
-- reads: entries
-- :from = last-day                     tables read from here, UTC
-- :to = last-day                       … to before here; of each node its last reading in that time
-- :top = 20                            so many
WITH latest AS (
  SELECT node, coalesce(netns, '') AS namespace, max(time) AS last
  FROM entries
  WHERE time >= moment(:from) AND time < moment(:to)
  GROUP BY node, coalesce(netns, '')
),
found AS (
  SELECT DISTINCT e.node, e.netns, e.zone, e.protocol, e.state, e.src, e.sport, e.dst, e.dport, e.nat_address, e.nat_port,
    e.started, e.time, e.idle_s, e.timeout_s
  FROM entries e
  JOIN latest l ON e.node = l.node AND coalesce(e.netns, '') = l.namespace AND e.time = l.last
  WHERE e.idle_s IS NOT NULL
)
SELECT node, netns, zone, protocol, state, src, sport, dst, dport, nat_address, nat_port, idle_s, timeout_s,
  thousandths((us(time) - us(started)) / 1000000) AS age_s
FROM found
ORDER BY idle_s DESC, node, netns NULLS FIRST, zone, protocol, src, sport NULLS FIRST, dst, dport NULLS FIRST,
  nat_address NULLS FIRST, nat_port NULLS FIRST, started NULLS FIRST
LIMIT :top
