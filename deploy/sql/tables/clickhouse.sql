-- The tables that the questions read, for a ClickHouse server: what a question asks for comes first in the order.
-- Made by 'make generate' from internal/table.

CREATE TABLE IF NOT EXISTS nat_log (
  node LowCardinality(String),
  kernel LowCardinality(Nullable(String)),
  netns LowCardinality(Nullable(String)),
  time DateTime64(6, 'UTC'),
  event LowCardinality(String),
  protocol LowCardinality(Nullable(String)),
  src String,
  sport Nullable(Int32),
  nat_address String,
  nat_port Nullable(Int32),
  nat_port_last Nullable(Int32),
  dst Nullable(String),
  dport Nullable(Int32),
  server Nullable(String),
  server_port Nullable(Int32),
  zone Nullable(Int32),
  reply_zone Nullable(Int32),
  started Nullable(DateTime64(6, 'UTC')),
  ended Nullable(DateTime64(6, 'UTC'))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (nat_address, nat_port, time)
SETTINGS allow_nullable_key = 1;

CREATE TABLE IF NOT EXISTS entries (
  node LowCardinality(String),
  kernel LowCardinality(Nullable(String)),
  netns LowCardinality(Nullable(String)),
  time DateTime64(6, 'UTC'),
  family LowCardinality(String),
  protocol LowCardinality(String),
  state LowCardinality(Nullable(String)),
  zone Int32,
  mark Nullable(Int64),
  src String,
  sport Nullable(Int32),
  dst String,
  dport Nullable(Int32),
  reply_src String,
  reply_sport Nullable(Int32),
  reply_dst String,
  reply_dport Nullable(Int32),
  snat Bool,
  dnat Bool,
  nat_address Nullable(String),
  nat_port Nullable(Int32),
  server String,
  server_port Nullable(Int32),
  orig_packets Nullable(Int64),
  orig_bytes Nullable(Int64),
  reply_packets Nullable(Int64),
  reply_bytes Nullable(Int64),
  timeout_s Nullable(Int64),
  idle_s Nullable(Int64),
  assured Bool,
  replied Bool,
  started Nullable(DateTime64(6, 'UTC'))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (node, time, src)
SETTINGS allow_nullable_key = 1;

CREATE TABLE IF NOT EXISTS samples (
  node LowCardinality(String),
  kernel LowCardinality(Nullable(String)),
  netns LowCardinality(Nullable(String)),
  time DateTime64(6, 'UTC'),
  boot_id LowCardinality(Nullable(String)),
  entries_count Nullable(Int64),
  entries_max Nullable(Int64),
  buckets Nullable(Int64),
  found Nullable(Int64),
  invalid Nullable(Int64),
  insert Nullable(Int64),
  insert_failed Nullable(Int64),
  drop Nullable(Int64),
  early_drop Nullable(Int64),
  error Nullable(Int64),
  search_restart Nullable(Int64),
  clash_resolve Nullable(Int64),
  chaintoolong Nullable(Int64),
  ignore Nullable(Int64),
  new_per_s Nullable(Float64),
  syns Nullable(Int64),
  syns_unanswered Nullable(Int64),
  dropped_packets Nullable(Int64),
  memory_total_bytes Nullable(Int64),
  memory_available_bytes Nullable(Int64),
  interval_s Nullable(Float64)
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (node, time)
SETTINGS allow_nullable_key = 1;

CREATE TABLE IF NOT EXISTS services (
  node LowCardinality(String),
  kernel LowCardinality(Nullable(String)),
  netns LowCardinality(Nullable(String)),
  time DateTime64(6, 'UTC'),
  kind LowCardinality(String),
  protocol LowCardinality(String),
  address Nullable(String),
  port Nullable(Int32),
  target Nullable(String),
  target_port Nullable(Int32),
  nat_address Nullable(String),
  attempts Int64,
  answered Int64,
  unanswered Int64,
  refused Nullable(Int64),
  reset Int64,
  stalled Int64,
  open Int64,
  new Nullable(Int64),
  handshake_us Nullable(Int64),
  complete Bool,
  interval_s Float64
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (kind, protocol, node, time)
SETTINGS allow_nullable_key = 1;
