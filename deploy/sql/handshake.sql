-- How long does a handshake take, by service and node?
-- reads: services
-- :from = last-day                     from here, UTC
-- :to = last-day                       … to before here
-- :least = 20                          answered attempts of a node at least
-- :slower = 0                          only nodes with so many times the service's median
-- :top = 50                            so many
--
-- "handshake_us" is the mean of the intervals' means, weighted by what was answered; "worst_us" the worst interval's.
-- "median_us" is that of the service's nodes: a node far above it is on a way of its own to the servers.
WITH heard AS (
  SELECT node, netns, protocol, address, port, target, target_port, nat_address, time, max(answered) AS answered,
    max(handshake_us) AS handshake_us
  FROM services
  WHERE time >= moment(:from) AND time < moment(:to) AND kind = 'dnat' AND handshake_us IS NOT NULL AND answered > 0
  GROUP BY node, netns, protocol, address, port, target, target_port, nat_address, time
),
nodes AS (
  SELECT protocol, address, port, node, sum(answered) AS answered_in_all,
    sum(answered * handshake_us) / sum(answered) AS mean_us, max(handshake_us) AS worst_us
  FROM heard
  GROUP BY protocol, address, port, node
),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY protocol, address, port ORDER BY mean_us, node) AS place,
    count(*) OVER (PARTITION BY protocol, address, port) AS nodes
  FROM nodes
  WHERE answered_in_all >= :least
),
medians AS (
  SELECT *, min(CASE WHEN 2 * place >= nodes THEN mean_us END) OVER (PARTITION BY protocol, address, port) AS median
  FROM ranked
)
SELECT protocol, address, port, node, answered_in_all AS answered, thousandths(mean_us) AS handshake_us, worst_us,
  nodes, thousandths(median) AS median_us, thousandths(mean_us / nullif(median, 0)) AS times_median
FROM medians
WHERE mean_us >= :slower * median
ORDER BY mean_us / nullif(median, 0) DESC, protocol, address, port NULLS FIRST, node
LIMIT :top
