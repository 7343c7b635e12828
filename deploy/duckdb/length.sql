-- Do rollouts get longer, does it pay, and are they cut? By environment and twenty spans of versions: tokens (mean and the longest
-- tenth), what share was truncated, the mean reward of all, of the truncated and of the longer half, and pays: how much reward a
-- hundred more tokens bring within the span (the slope of a straight line). Longer with pays near 0 is the length bias of
-- arXiv:2503.20783; truncated rollouts with a low reward teach to be short: raise max_rollout_tokens, or filter them.
WITH versions AS (
    SELECT *, policy_start - min(policy_start) OVER (PARTITION BY env) AS age,
           greatest(1, ceil((max(policy_start) OVER (PARTITION BY env) - min(policy_start) OVER (PARTITION BY env) + 1) / 20)::BIGINT) AS width
    FROM rollouts
    WHERE eval = '' AND reward IS NOT NULL AND policy_start IS NOT NULL
), spans AS (
    SELECT *, age // width AS span, tokens > median(tokens) OVER (PARTITION BY env, age // width) AS longer
    FROM versions
)
SELECT env, min(policy_start) AS from_version, max(policy_start) AS to_version, count(*) AS rollouts, avg(tokens) AS tokens,
       quantile_cont(tokens, 0.9) AS longest_tenth, avg(truncated::INT) AS truncated, avg(reward) AS reward,
       avg(reward) FILTER (truncated) AS reward_of_truncated, avg(reward) FILTER (longer) AS reward_of_longer_half,
       100 * CASE WHEN var_pop(tokens) > 0 THEN regr_slope(reward, tokens) END AS pays
FROM spans
GROUP BY env, span
ORDER BY env, from_version;
