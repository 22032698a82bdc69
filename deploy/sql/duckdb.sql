-- The functions of the questions, for DuckDB.
SET TimeZone = 'UTC';
CREATE OR REPLACE MACRO us(t) AS epoch_us(t);
CREATE OR REPLACE MACRO moment(t) AS CAST(t AS TIMESTAMPTZ);
CREATE OR REPLACE MACRO later(t, seconds) AS t + to_seconds(seconds);
CREATE OR REPLACE MACRO thousandths(x) AS floor(x * 1000 + 0.5) / 1000;
