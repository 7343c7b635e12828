-- What do rollouts spend their time on? By environment: seconds of a rollout at the median and of the slowest twentieth, what share
-- of all time went to the model, the environment, setting up and scoring, how many times slower than the median the slowest of a
-- group is (the others of the group wait for it), and tokens a second of one rollout. A large model share asks for more
-- inference, a large environment share for more or faster environment servers, a large straggle for a shorter timeout or limit.
WITH spent AS (
    SELECT env, eval, group_id, timing.setup_ms + timing.generation_ms + timing.environment_ms + timing.scoring_ms AS all_ms, timing,
           list_sum(list_transform(nodes, lambda n: list_sum(n.mask))) AS tokens
    FROM traces
    WHERE eval = '' AND len(errors) = 0
), groups_of AS (
    SELECT env, group_id, max(all_ms) / nullif(median(all_ms), 0) AS straggle FROM spent GROUP BY ALL
), straggles AS (
    SELECT env, median(straggle) AS straggle FROM groups_of GROUP BY env
)
SELECT env, count(*) AS rollouts, median(all_ms) / 1000 AS seconds, quantile_cont(all_ms, 0.95) / 1000 AS slowest_twentieth,
       sum(timing.generation_ms) / nullif(sum(all_ms), 0) AS model, sum(timing.environment_ms) / nullif(sum(all_ms), 0) AS environment,
       sum(timing.setup_ms) / nullif(sum(all_ms), 0) AS setting_up, sum(timing.scoring_ms) / nullif(sum(all_ms), 0) AS scoring,
       any_value(straggle) AS straggle, 1000 * sum(tokens) / nullif(sum(timing.generation_ms), 0) AS tokens_per_second
FROM spent
JOIN straggles USING (env)
GROUP BY env
ORDER BY env;
