-- What did an upgrade of the kernel change?
-- reads: samples services
-- :from = last-week                    upgrades from here, UTC
-- :to = last-day                       … to before here
-- :window_s = 43200                    what was so long before, and after
--
-- Of all nodes with the same two kernels together: connections lost in an hour (drop, insert_failed), entries,
-- percent of attempts answered, the handshake's time. "worse" counts the nodes on which it got worse.
WITH readings AS (
  SELECT s.node, s.netns, s.time, max(s.kernel) AS kernel, max(s.boot_id) AS boot_id, max(s.entries_count) AS entries,
    max(coalesce(s.insert_failed, 0) + coalesce(s.drop, 0)) AS counter
  FROM samples s
  WHERE s.time >= later(moment(:from), -:window_s) AND s.time < later(moment(:to), :window_s)
    AND (s.insert_failed IS NOT NULL OR s.drop IS NOT NULL)
  GROUP BY s.node, s.netns, s.time
),
steps AS (
  SELECT *, row_number() OVER w AS place, lag(counter) OVER w AS counter_before, lag(boot_id) OVER w AS boot_before,
    lag(us(time)) OVER w AS us_before
  FROM readings
  WINDOW w AS (PARTITION BY node, netns ORDER BY time)
),
heard AS (
  SELECT node, netns, protocol, address, port, target, target_port, nat_address, time, max(attempts) AS attempts,
    max(answered) AS answered, max(handshake_us) AS handshake_us
  FROM services
  WHERE time >= later(moment(:from), -:window_s) AND time < later(moment(:to), :window_s)
    AND kind = 'dnat'
  GROUP BY node, netns, protocol, address, port, target, target_port, nat_address, time
),
kernels AS (
  SELECT node, time, max(kernel) AS kernel FROM readings GROUP BY node, time
),
neighbours AS (
  SELECT *, row_number() OVER w AS place, lag(kernel) OVER w AS kernel_before
  FROM kernels
  WINDOW w AS (PARTITION BY node ORDER BY time)
),
upgrades AS (
  SELECT node, kernel_before AS old_kernel, kernel AS new_kernel, time AS upgraded
  FROM neighbours
  WHERE place > 1 AND kernel <> kernel_before AND time >= moment(:from) AND time < moment(:to)
),
-- Each measure is a quotient of two sums.
measures AS (
  SELECT node, time, 'lost_per_hour' AS measure, 1 AS bad,
    (CASE WHEN boot_id <> boot_before OR counter < counter_before THEN counter ELSE counter - counter_before END) * 3600e0 AS up,
    floor((us(time) - us_before) / 1000000) * 1e0 AS down
  FROM steps
  WHERE place > 1
  UNION ALL
  SELECT node, time, 'entries' AS measure, 1 AS bad, entries * 1e0 AS up, 1e0 AS down FROM readings
  WHERE entries IS NOT NULL
  UNION ALL
  SELECT node, time, 'answered_percent' AS measure, -1 AS bad, answered * 100e0 AS up, attempts * 1e0 AS down FROM heard
  UNION ALL
  SELECT node, time, 'handshake_us' AS measure, 1 AS bad, handshake_us * answered * 1e0 AS up, answered * 1e0 AS down FROM heard
  WHERE handshake_us IS NOT NULL
),
nodes AS (
  SELECT u.node AS node, u.old_kernel AS old_kernel, u.new_kernel AS new_kernel, m.measure AS measure, m.bad AS bad,
    sum(CASE WHEN m.time < u.upgraded THEN m.up ELSE 0e0 END) AS up_before,
    sum(CASE WHEN m.time < u.upgraded THEN m.down ELSE 0e0 END) AS down_before,
    sum(CASE WHEN m.time >= u.upgraded THEN m.up ELSE 0e0 END) AS up_after,
    sum(CASE WHEN m.time >= u.upgraded THEN m.down ELSE 0e0 END) AS down_after
  FROM upgrades u
  JOIN measures m ON m.node = u.node
  WHERE m.time >= later(u.upgraded, -:window_s) AND m.time < later(u.upgraded, :window_s)
  GROUP BY u.node, u.old_kernel, u.new_kernel, m.measure, m.bad
)
SELECT old_kernel, new_kernel, measure, count(DISTINCT node) AS nodes,
  thousandths(sum(up_before) / nullif(sum(down_before), 0)) AS before,
  thousandths(sum(up_after) / nullif(sum(down_after), 0)) AS after,
  sum(CASE WHEN bad * (up_after / nullif(down_after, 0) - up_before / nullif(down_before, 0)) > 0 THEN 1 ELSE 0 END)
    AS worse
FROM nodes
GROUP BY old_kernel, new_kernel, measure
ORDER BY old_kernel, new_kernel, measure
