-- Who used a translated address and port at a time?
-- reads: nat_log
-- :address = required                  the translated address
-- :port = required                     the translated port
-- :protocol = ''                       tcp, udp, …; empty: every one
-- :time = required                     when, UTC
-- :slack_s = 2                         how far clocks may be apart: nodes' own, and that of who asks
--
-- "sure" says what the answer rests on: 'log' the start and the end, 'no end' the start alone (it lasts, or the end
-- was lost), 'no start' the end alone, 'clock' only if a clock was wrong by up to :slack_s, 'stepped' an end before the
-- start: the clock was set back between them, and for a day around them it may have been any time but that between the two.
-- A start without "started" is of a connection that was there when the log began: its time is from when that is certain.
WITH logged AS (
  SELECT DISTINCT node, netns, event, protocol, src, sport, nat_port, nat_port_last, dst, dport, started, ended, time
  FROM nat_log
  WHERE nat_address = :address
    AND nat_port <= :port AND coalesce(nat_port_last, nat_port) >= :port
    AND (:protocol = '' OR protocol IS NULL OR protocol = :protocol)
    AND (started IS NULL OR started <= later(moment(:time), :slack_s) OR ended < started)
),
-- Where it is not known when they began, an end is that of what was there before it.
parts AS (
  SELECT *, CASE WHEN started IS NULL THEN coalesce(sum(CASE WHEN event = 'end' THEN 1 ELSE 0 END) OVER (
      PARTITION BY node, netns, event = 'block', protocol, src, sport, nat_port, nat_port_last, dst, dport, started
      ORDER BY time, event DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) ELSE 0 END AS part
  FROM logged
),
uses AS (
  SELECT node, netns, event = 'block' AS block, protocol, src, sport, nat_port, nat_port_last, dst, dport, started,
    min(CASE WHEN event = 'start' AND started IS NULL THEN time END) AS present,
    max(ended) AS end_logged, coalesce(max(ended) < started, false) AS stepped
  FROM parts
  GROUP BY node, netns, event = 'block', protocol, src, sport, nat_port, nat_port_last, dst, dport, started, part
),
-- A port that a node gave again to the same destination was free by then, even if no end was logged.
bounded AS (
  SELECT *, lead(coalesce(started, present)) OVER (
      PARTITION BY node, netns, block, stepped, protocol, nat_port, nat_port_last, dst, dport
      ORDER BY coalesce(started, present) NULLS FIRST, src, sport NULLS FIRST) AS given_again
  FROM uses
)
SELECT node, netns, protocol, src, sport, dst, dport, started, coalesce(end_logged, given_again) AS ended,
  CASE
    WHEN stepped THEN 'stepped'
    WHEN started > moment(:time) OR coalesce(end_logged, given_again) < moment(:time) THEN 'clock'
    WHEN started IS NULL AND present > moment(:time) THEN 'no start'
    WHEN end_logged IS NULL THEN 'no end'
    WHEN started IS NULL AND present IS NULL THEN 'no start'
    ELSE 'log'
  END AS sure
FROM bounded
WHERE coalesce(end_logged, given_again) IS NULL
  OR NOT stepped AND coalesce(end_logged, given_again) >= later(moment(:time), -:slack_s)
  OR stepped AND (started <= later(moment(:time), :slack_s) OR end_logged >= later(moment(:time), -:slack_s))
    AND started >= later(moment(:time), -86400) AND end_logged <= later(moment(:time), 86400)
ORDER BY coalesce(started, present) NULLS FIRST, node, netns NULLS FIRST, protocol NULLS FIRST, src, sport NULLS FIRST, dst NULLS FIRST,
  dport NULLS FIRST
