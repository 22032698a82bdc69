-- Which nodes lose new connections, and since when?
-- reads: samples
-- :from = last-day                     samples from here, UTC
-- :to = last-day                       … to before here
--
-- Lost is what conntrack counted as drop and insert_failed. "since" is the last sample before the last bout of
-- losses, "until" the last sample with one; "now" says whether it was the node's last sample too.
WITH readings AS (
  SELECT s.node, s.netns, s.time, max(s.kernel) AS kernel, max(s.boot_id) AS boot_id,
    max(coalesce(s.insert_failed, 0) + coalesce(s.drop, 0)) AS counter
  FROM samples s
  WHERE s.time >= moment(:from) AND s.time < moment(:to) AND (s.insert_failed IS NOT NULL OR s.drop IS NOT NULL)
  GROUP BY s.node, s.netns, s.time
),
steps AS (
  SELECT *, row_number() OVER w AS place, lag(counter) OVER w AS counter_before,
    lag(boot_id) OVER w AS boot_before
  FROM readings
  WINDOW w AS (PARTITION BY node, netns ORDER BY time)
),
-- After a boot counters begin again at 0.
losses AS (
  SELECT node, netns, time, kernel,
    CASE
      WHEN place = 1 THEN 0
      WHEN boot_id <> boot_before OR counter < counter_before THEN counter
      ELSE counter - counter_before
    END AS lost
  FROM steps
),
-- Every sample without a loss begins a bout, which has the samples with losses that follow.
numbered AS (
  SELECT *, sum(CASE WHEN lost = 0 THEN 1 ELSE 0 END) OVER (
      PARTITION BY node, netns ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS bout
  FROM losses
),
bouts AS (
  SELECT node, netns, bout, max(kernel) AS kernel, min(time) AS since, max(time) AS until, sum(lost) AS lost
  FROM numbered
  GROUP BY node, netns, bout
),
ends AS (
  SELECT *, max(until) OVER (PARTITION BY node, netns) AS sampled_until
  FROM bouts
),
ranked AS (
  SELECT *, row_number() OVER (PARTITION BY node, netns ORDER BY bout DESC) AS back,
    sum(lost) OVER (PARTITION BY node, netns) AS lost_in_all,
    count(*) OVER (PARTITION BY node, netns) AS bouts
  FROM ends
  WHERE lost > 0
)
SELECT node, netns, kernel, lost_in_all, bouts, since, until, lost,
  CASE WHEN until = sampled_until THEN 'yes' ELSE 'no' END AS now
FROM ranked
WHERE back = 1
ORDER BY lost_in_all DESC, node, netns NULLS FIRST
