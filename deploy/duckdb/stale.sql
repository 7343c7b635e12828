-- Was what went stale different from what was trained? Dropping it is biased where it was: long rollouts live through more
-- policy versions, and go stale first. By environment, over all lengths and for each quarter of them (1: the shortest
-- rollouts): how many tokens, what share was stale, and how the rewards of the two differ. A difference of more than two
-- standard errors is no accident. A rollout that was cancelled when it went stale has no reward, and the tokens it had then.
-- Where the shares grow with the length, [emitter] staleness = "wait" keeps long rollouts.
WITH fates AS (
    SELECT env, tokens, reward, fate = 'stale' AS stale, ceil(4 * cume_dist() OVER (PARTITION BY env ORDER BY tokens))::INT AS quarter
    FROM rollouts
    WHERE eval = '' AND fate IN ('packed', 'stale')
), compared AS (
    SELECT env, coalesce(quarter::VARCHAR, 'all') AS quarter, min(tokens) AS shortest, max(tokens) AS longest,
           count(*) FILTER (NOT stale) AS trained, count(*) FILTER (stale) AS stale, avg(stale::INT) AS stale_share,
           avg(tokens) FILTER (NOT stale) AS trained_tokens, avg(tokens) FILTER (stale) AS stale_tokens,
           avg(reward) FILTER (NOT stale) AS trained_reward, avg(reward) FILTER (stale) AS stale_reward,
           sqrt(var_samp(reward) FILTER (NOT stale) / count(reward) FILTER (NOT stale)
              + var_samp(reward) FILTER (stale) / count(reward) FILTER (stale)) AS standard_error
    FROM fates
    GROUP BY GROUPING SETS ((env), (env, quarter))
)
SELECT * EXCLUDE standard_error, stale_reward - trained_reward AS reward_difference, standard_error
FROM compared
ORDER BY env, quarter = 'all' DESC, quarter;
