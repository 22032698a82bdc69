-- Which nodes' tables grow to their limit, and when do they get there?
-- reads: samples
-- :from = last-day                     samples from here, UTC
-- :to = last-day                       … to before here
-- :hours = 168                         those that are full within so many hours
--
-- "per_hour" is the slope of the straight line through all samples (least squares).
WITH readings AS (
  SELECT node, netns, time, max(entries_count) AS entries, max(entries_max) AS entries_max
  FROM samples
  WHERE time >= moment(:from) AND time < moment(:to) AND entries_count IS NOT NULL
  GROUP BY node, netns, time
),
firsts AS (
  SELECT *, min(us(time)) OVER (PARTITION BY node, netns) AS first_us,
    row_number() OVER (PARTITION BY node, netns ORDER BY time DESC) AS back
  FROM readings
),
points AS (
  SELECT *, floor((us(time) - first_us) / 1000000) * 1e0 AS x, entries * 1e0 AS y
  FROM firsts
),
sums AS (
  SELECT node, netns, count(*) AS samples, max(time) AS last,
    max(CASE WHEN back = 1 THEN entries END) AS entries, max(CASE WHEN back = 1 THEN entries_max END) AS entries_max,
    max(entries) AS peak, sum(x) AS sum_x, sum(y) AS sum_y, sum(x * y) AS sum_xy, sum(x * x) AS sum_xx
  FROM points
  GROUP BY node, netns
),
slopes AS (
  SELECT *, 3600 * ((samples * sum_xy - sum_x * sum_y) / nullif(samples * sum_xx - sum_x * sum_x, 0)) AS per_hour
  FROM sums
),
left_over AS (
  SELECT *, CASE
      WHEN entries >= entries_max THEN 0e0
      WHEN per_hour > 0 THEN (entries_max - entries) / per_hour
    END AS remaining
  FROM slopes
)
SELECT node, netns, samples, last, entries, entries_max, peak, thousandths(entries / nullif(entries_max, 0)) AS used,
  thousandths(per_hour) AS per_hour, thousandths(remaining) AS hours_left
FROM left_over
WHERE remaining <= :hours
ORDER BY remaining, node, netns NULLS FIRST
