-- Does the reward rise? Mean reward of the training rollouts, by environment and the step whose policy started them.
-- All rollouts that have a reward count, the filtered and stale ones, too: the trained ones alone would be a biased pick.
SELECT env, policy_start AS step, count(*) AS rollouts, avg(reward) AS reward, avg(truncated::INT) AS truncated
FROM rollouts
WHERE eval = '' AND reward IS NOT NULL AND policy_start IS NOT NULL
GROUP BY ALL
ORDER BY ALL;
