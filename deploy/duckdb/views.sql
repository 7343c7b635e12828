-- The records of a run as SQL views:   duckdb -init deploy/duckdb/views.sql
--
-- They read runs/demo/parquet, what the demo's sink writes. For another run:
--     duckdb -cmd "SET VARIABLE run = 'runs/prl'" -cmd ".read deploy/duckdb/views.sql"
-- and in an open session SET VARIABLE run = '...' again: the views read the run that is set when they are asked.
-- The sink puts an empty file into each table's folder, so that a table without records has no rows rather than an error.
--
-- Column names are those of the records (schemas/*.avsc). kafka_topic, kafka_partition and kafka_offset say which record
-- a row is, kafka_time (UTC) when it was written. Records that could not be decoded are left out here; they are in the
-- files, with kafka_error and kafka_raw set.

SET VARIABLE run = coalesce(getvariable('run'), 'runs/demo');

-- One row per finished rollout: its message graph with tokens, rewards, errors, timing. eval is '' for training. A
-- rollout that was run twice (after a crash) has two; outcomes and rollouts have exactly one. task is JSON: task->>'word'.
CREATE OR REPLACE VIEW traces AS
SELECT * EXCLUDE (kafka_error, kafka_raw) REPLACE (TRY_CAST(task AS JSON) AS task)
FROM read_parquet([getvariable('run') || '/parquet/traces/*.parquet', getvariable('run') || '/parquet/eval_traces/*.parquet'], union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per message of a trace; node is its index, parent the index of the message before it (-1 at a root).
CREATE OR REPLACE VIEW nodes AS
SELECT env, eval, group_id, rollout_index, attempt, kafka_topic, kafka_partition, kafka_offset,
       generate_subscripts(nodes, 1) - 1 AS node, unnest(nodes, max_depth := 2)
FROM traces;

-- One row per scored group: its samples, or why it has none. monitored counts, by filter, the samples that filters took
-- which only monitor, and those that were dropped from a group that is trained.
CREATE OR REPLACE VIEW sample_groups AS
SELECT * EXCLUDE (kafka_error, kafka_raw)
FROM read_parquet(getvariable('run') || '/parquet/samples/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per training sample: a branch of a rollout with its advantages.
CREATE OR REPLACE VIEW samples AS
SELECT env, group_id, task_index, kafka_partition, kafka_offset, unnest(samples, max_depth := 2)
FROM sample_groups;

-- One row per group: its fate, and the step that trained it.
CREATE OR REPLACE VIEW outcomes AS
SELECT * EXCLUDE (kafka_error, kafka_raw)
FROM read_parquet(getvariable('run') || '/parquet/outcomes/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per rollout of a group: its own fate, reward and policy version. group_fate is that of the whole group.
CREATE OR REPLACE VIEW rollouts AS
SELECT env, eval, group_id, task_index, fate AS group_fate, step, filter, unnest(rollouts, max_depth := 2)
FROM outcomes;

-- One row per policy version.
CREATE OR REPLACE VIEW policies AS
SELECT * EXCLUDE (kafka_error, kafka_raw)
FROM read_parquet(getvariable('run') || '/parquet/policies/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per eval of a policy version, or of a frozen policy. avg_at_k ± 1.96 * avg_stderr is the 95 % confidence
-- interval, over the tasks that were played (arXiv:2411.00640). Evals by hand have names that begin with by-hand/; of one that was
-- resumed the newest result counts. avg_at_k and pass_at_k are NULL where no reward applied.
CREATE OR REPLACE VIEW evals AS
SELECT * EXCLUDE (kafka_error, kafka_raw, avg_missing, pass_missing)
  REPLACE (CASE WHEN avg_missing THEN NULL ELSE avg_at_k END AS avg_at_k, CASE WHEN avg_missing THEN NULL ELSE avg_stderr END AS avg_stderr,
           CASE WHEN pass_missing THEN NULL ELSE pass_at_k END AS pass_at_k, CASE WHEN pass_missing THEN NULL ELSE pass_stderr END AS pass_stderr)
FROM (FROM read_parquet(getvariable('run') || '/parquet/evals/*.parquet', union_by_name = true) UNION ALL BY NAME
      SELECT false AS avg_missing, false AS pass_missing, 0.0::DOUBLE AS avg_stderr, 0.0::DOUBLE AS pass_stderr WHERE false) -- old files lack them
WHERE kafka_error IS NULL
QUALIFY eval NOT LIKE 'by-hand/%' OR row_number() OVER (PARTITION BY eval, version, policy ORDER BY kafka_offset DESC) = 1;

-- One row per point of a curve of the run page.
CREATE OR REPLACE VIEW metrics AS
SELECT * EXCLUDE (kafka_error, kafka_raw, time_ms), make_timestamp(time_ms * 1000) AS time
FROM read_parquet(getvariable('run') || '/parquet/metrics/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per task that was emitted.
CREATE OR REPLACE VIEW tasks AS
SELECT * EXCLUDE (kafka_error, kafka_raw) REPLACE (TRY_CAST(task AS JSON) AS task)
FROM read_parquet(getvariable('run') || '/parquet/tasks/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per micro-batch, as the trainer got it.
CREATE OR REPLACE VIEW batches AS
SELECT * EXCLUDE (kafka_error, kafka_raw)
FROM read_parquet(getvariable('run') || '/parquet/batches/*.parquet', union_by_name = true)
WHERE kafka_error IS NULL;

-- One row per record that a stage refused: which it was, why, and its bytes.
CREATE OR REPLACE VIEW dlq AS
SELECT * EXCLUDE (kafka_error, kafka_raw)
FROM read_parquet(getvariable('run') || '/parquet/dlq/*.parquet', union_by_name = true);
