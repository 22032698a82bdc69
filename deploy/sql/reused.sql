-- Which ports of a NAT address were given again within TIME_WAIT, on one node or across nodes?
-- reads: nat_log
-- :from = last-day                     log from here, UTC
-- :to = last-day                       … to before here
-- :address = ''                        one translated address; empty: all
-- :time_wait_s = 60                    how long the server remembers the old connection
--
-- A use counts if the one before it of the same translated address and port to the same destination ended less than
-- :time_wait_s earlier. "overlaps" are those that began before the other's end: one address on two nodes, or
-- clocks apart.
WITH uses AS (
  SELECT node, netns, src, sport, nat_address, nat_port, dst, dport, started, max(ended) AS end_logged
  FROM nat_log
  WHERE event <> 'block' AND protocol = 'tcp' AND started IS NOT NULL AND dst IS NOT NULL AND nat_address <> src
    AND time >= moment(:from) AND time < moment(:to)
    AND (:address = '' OR nat_address = :address)
  GROUP BY node, netns, src, sport, nat_address, nat_port, dst, dport, started
),
pairs AS (
  SELECT node, netns, nat_address, nat_port, dst, dport, started,
    lag(node) OVER w AS node_before, lag(netns) OVER w AS netns_before, lag(end_logged) OVER w AS ended_before
  FROM uses
  WINDOW w AS (PARTITION BY nat_address, nat_port, dst, dport
    ORDER BY started, node, netns NULLS FIRST, src, sport NULLS FIRST)
),
gaps AS (
  SELECT *, us(started) - us(ended_before) AS gap_us
  FROM pairs
  WHERE ended_before IS NOT NULL
)
SELECT nat_address, node_before, netns_before, node, netns, count(*) AS times, count(DISTINCT nat_port) AS ports,
  count(CASE WHEN gap_us < 0 THEN 1 END) AS overlaps, thousandths(min(gap_us) / 1000000) AS least_gap_s,
  min(started) AS first, max(started) AS last
FROM gaps
WHERE gap_us < :time_wait_s * 1e6
GROUP BY nat_address, node_before, netns_before, node, netns
ORDER BY times DESC, nat_address, node_before, netns_before NULLS FIRST, node, netns NULLS FIRST
