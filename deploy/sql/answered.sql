-- Which services' answered share fell?
-- reads: services
-- :time = last-noon                    before and after this, UTC
-- :window_s = 3600                     how long before and after
-- :fell = 0.05                         by how much at least
-- :least = 20                          attempts in each window at least
WITH heard AS (
  SELECT node, netns, protocol, address, port, target, target_port, nat_address, time, max(attempts) AS attempts,
    max(answered) AS answered
  FROM services
  WHERE time > later(moment(:time), -:window_s) AND time <= later(moment(:time), :window_s)
    AND kind = 'dnat'
  GROUP BY node, netns, protocol, address, port, target, target_port, nat_address, time
),
nodes AS (
  SELECT node, protocol, address, port,
    sum(CASE WHEN time <= moment(:time) THEN attempts ELSE 0 END) AS attempts_before,
    sum(CASE WHEN time <= moment(:time) THEN answered ELSE 0 END) AS answered_before,
    sum(CASE WHEN time > moment(:time) THEN attempts ELSE 0 END) AS attempts_after,
    sum(CASE WHEN time > moment(:time) THEN answered ELSE 0 END) AS answered_after
  FROM heard
  GROUP BY node, protocol, address, port
),
fleet AS (
  SELECT protocol, address, port, count(*) AS nodes,
    sum(CASE WHEN answered_before / nullif(attempts_before, 0) - answered_after / nullif(attempts_after, 0) >= :fell
      THEN 1 ELSE 0 END) AS nodes_fell,
    sum(attempts_before) AS attempts_before, sum(answered_before) AS answered_before,
    sum(attempts_after) AS attempts_after, sum(answered_after) AS answered_after
  FROM nodes
  GROUP BY protocol, address, port
),
shares AS (
  SELECT *, answered_before / nullif(attempts_before, 0) AS share_before,
    answered_after / nullif(attempts_after, 0) AS share_after
  FROM fleet
)
SELECT protocol, address, port, nodes, nodes_fell, attempts_before, thousandths(share_before) AS share_before,
  attempts_after, thousandths(share_after) AS share_after, thousandths(share_before - share_after) AS fell
FROM shares
WHERE attempts_before >= :least AND attempts_after >= :least AND share_before - share_after >= :fell
ORDER BY share_before - share_after DESC, protocol, address, port NULLS FIRST
