-- What was dropped, and was it biased? For every fate of training rollouts: how many, what share of the environment's
-- rollouts, and how their reward and length differ from those that were trained. Large differences mean that the
-- trainer sees another distribution than the policy makes.
WITH fates AS (
    SELECT env, fate, filter, count(*) AS rollouts, avg(reward) AS reward, avg(tokens) AS tokens
    FROM rollouts
    WHERE eval = ''
    GROUP BY ALL
), trained AS (
    SELECT env, reward, tokens FROM fates WHERE fate = 'packed'
)
SELECT f.env, f.fate, f.filter, f.rollouts, f.rollouts / sum(f.rollouts) OVER (PARTITION BY f.env) AS share,
       f.reward, f.reward - t.reward AS reward_difference, f.tokens, f.tokens - t.tokens AS tokens_difference
FROM fates f
LEFT JOIN trained t USING (env)
ORDER BY f.env, f.rollouts DESC, f.fate, f.filter;
