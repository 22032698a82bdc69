-- The functions of the questions, for ClickHouse (25 and later), and what makes its NULL and its names those of the others.
SET join_use_nulls = 1;
SET prefer_column_name_to_alias = 1;
CREATE FUNCTION IF NOT EXISTS us AS t -> toUnixTimestamp64Micro(t);
CREATE FUNCTION IF NOT EXISTS moment AS t -> toDateTime64(t, 6, 'UTC');
CREATE FUNCTION IF NOT EXISTS later AS (t, seconds) -> t + toIntervalSecond(seconds);
CREATE FUNCTION IF NOT EXISTS thousandths AS x -> floor(x * 1000 + 0.5) / 1000;
