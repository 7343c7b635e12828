-- What became of a run that began from a version of another one (--from)? Evals of both from that version on, side by side;
-- of each training reward, too: reward is the mean of the rollouts that the version started, by environment. The other run
-- is looked for beside this one; SET VARIABLE other = 'runs/A' if it is elsewhere.
SET VARIABLE other = coalesce(getvariable('other'), (SELECT regexp_replace(getvariable('run'), '[^/]+$', from_run) FROM policies WHERE from_run <> ''));
WITH
began AS (SELECT version FROM policies WHERE from_run <> ''),
other_rollouts AS (
  SELECT env, eval, unnest(rollouts, max_depth := 2)
  FROM read_parquet(getvariable('other') || '/parquet/outcomes/*.parquet', union_by_name = true) WHERE kafka_error IS NULL),
other_evals AS (
  SELECT * FROM read_parquet(getvariable('other') || '/parquet/evals/*.parquet', union_by_name = true) WHERE kafka_error IS NULL),
figures AS (
  SELECT 'reward' AS figure, env AS name, policy_start AS version, avg(reward) AS here, NULL AS there
  FROM rollouts WHERE eval = '' AND policy_start IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT 'reward', env, policy_start, NULL, avg(reward) FROM other_rollouts WHERE eval = '' AND policy_start IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT 'eval', eval, version, avg_at_k, NULL FROM evals
  UNION ALL
  SELECT 'eval', eval, version, NULL, avg_at_k FROM other_evals)
SELECT figure, name, version, max(here) AS here, max(there) AS there
FROM figures WHERE version >= (SELECT version FROM began)
GROUP BY ALL ORDER BY ALL;
