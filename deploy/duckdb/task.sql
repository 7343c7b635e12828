-- What did the same task look like early and late? Rollouts of one task, the last that each of two versions (or the nearest ones)
-- played: reward, tokens and what the model said last. By default the task with the most rollouts, at the first and the newest version;
-- SET VARIABLE env = 'wordle', task = 17, a = 10, b = 400 for another. Evals count, too.
WITH chosen AS (
    SELECT env, task_index FROM traces
    WHERE policy_start IS NOT NULL AND len(errors) = 0 AND env = coalesce(getvariable('env'), env) AND task_index = coalesce(getvariable('task'), task_index)
    GROUP BY ALL ORDER BY count(DISTINCT policy_start) DESC, count(*) DESC, env, task_index LIMIT 1
), played AS (
    SELECT t.* FROM traces t JOIN chosen USING (env, task_index) WHERE policy_start IS NOT NULL AND len(errors) = 0
), wanted AS (
    SELECT unnest([coalesce(getvariable('a'), min(policy_start)), coalesce(getvariable('b'), max(policy_start))]) AS version FROM played
), nearest AS (
    SELECT DISTINCT arg_min(policy_start, abs(policy_start - version)) AS policy_start FROM played, wanted GROUP BY version
)
SELECT policy_start AS version, env, task_index, eval, group_id, rollout_index, reward, stop_reason, truncated,
       list_sum(list_transform(nodes, lambda n: len(n.mask))) AS tokens, left(list_filter(nodes, lambda n: n.role = 'assistant')[-1].content, 2000) AS said,
       left(task::VARCHAR, 500) AS task
FROM played
JOIN nearest USING (policy_start)
QUALIFY row_number() OVER (PARTITION BY policy_start ORDER BY kafka_time DESC, group_id DESC, rollout_index) <= 4
ORDER BY version, group_id, rollout_index;
