-- What fails, where, how often, and since when? Rollouts that failed for a reason of the infrastructure, by environment, kind of
-- error and its message (numbers as #, so that messages that differ in them are one), the most frequent first: how many, what
-- share of the environment's rollouts, on which servers, from when to when (UTC), and at which versions. kept says how many of
-- their groups were trained all the same.
WITH failed AS (
    SELECT env, eval, group_id, instance, kafka_time, policy_start, errors[1].type AS error,
           regexp_replace(left(errors[1].message, 200), '[0-9]+', '#', 'g') AS message
    FROM traces
    WHERE len(errors) > 0
), all_of AS (
    SELECT env, count(*) AS traces FROM traces GROUP BY env
), trained AS (
    SELECT DISTINCT env, group_id FROM outcomes WHERE eval = '' AND fate = 'packed'
)
SELECT f.env, error, message, count(*) AS rollouts, count(*) / any_value(a.traces) AS share,
       list_sort(list_distinct(list(instance))) AS servers, min(kafka_time) AS first, max(kafka_time) AS last,
       min(policy_start) AS first_version, max(policy_start) AS last_version,
       count(DISTINCT f.group_id) FILTER (f.eval = '' AND t.group_id IS NOT NULL) AS kept
FROM failed f
JOIN all_of a USING (env)
LEFT JOIN trained t ON t.env = f.env AND t.group_id = f.group_id
GROUP BY ALL
ORDER BY rollouts DESC, f.env, error, message;
