-- Which clients move the most bytes?
-- reads: entries
-- :from = last-day                     tables read from here, UTC
-- :to = last-day                       … to before here
-- :top = 20                            so many
--
-- A connection that several readings have counts once, with its largest counters. "uncounted" are connections
-- without counters (nf_conntrack_acct is 0 there).
WITH seen AS (
  SELECT node, netns, zone, protocol, src, sport, dst, dport, started,
    max(orig_bytes) AS sent, max(reply_bytes) AS received, max(orig_packets + reply_packets) AS packets
  FROM entries
  WHERE time >= moment(:from) AND time < moment(:to)
  GROUP BY node, netns, zone, protocol, src, sport, dst, dport, started
),
clients AS (
  SELECT src, count(DISTINCT node) AS nodes, count(*) AS connections,
    sum(CASE WHEN sent IS NULL THEN 1 ELSE 0 END) AS uncounted,
    coalesce(sum(sent), 0) AS sent_bytes, coalesce(sum(received), 0) AS received_bytes,
    coalesce(sum(packets), 0) AS packets
  FROM seen
  GROUP BY src
),
shares AS (
  SELECT *, (sent_bytes + received_bytes) / nullif(sum(sent_bytes + received_bytes) OVER (), 0) AS share
  FROM clients
)
SELECT src, nodes, connections, uncounted, sent_bytes, received_bytes, packets, thousandths(100 * share) AS percent
FROM shares
ORDER BY sent_bytes + received_bytes DESC, connections DESC, src
LIMIT :top
