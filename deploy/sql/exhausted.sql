-- Which destination exhausts which pool of ports?
-- reads: entries
-- :from = last-day                     tables read from here, UTC
-- :to = last-day                       … to before here
-- :ports = 64512                       ports of a translated address (1024-65535)
-- :share = 0.5                         of them in use towards one destination at least
--
-- A port is free for one destination while it is used for another: what counts is address, protocol and destination.
-- Each line is the reading with the most ports; "time_wait" of them only wait.
WITH used AS (
  SELECT node, netns, protocol, nat_address, server, server_port, time, count(DISTINCT nat_port) AS ports,
    count(DISTINCT CASE WHEN state = 'TIME_WAIT' THEN nat_port END) AS time_wait, count(DISTINCT src) AS clients
  FROM entries
  WHERE snat AND nat_port IS NOT NULL AND time >= moment(:from) AND time < moment(:to)
  GROUP BY node, netns, protocol, nat_address, server, server_port, time
),
ranked AS (
  SELECT *, row_number() OVER (
      PARTITION BY node, netns, protocol, nat_address, server, server_port ORDER BY ports DESC, time) AS place
  FROM used
)
SELECT node, netns, protocol, nat_address, server, server_port, time, ports, time_wait, clients,
  thousandths(ports / :ports) AS share
FROM ranked
WHERE place = 1 AND ports >= :share * :ports
ORDER BY ports DESC, node, netns NULLS FIRST, protocol, nat_address, server, server_port NULLS FIRST
