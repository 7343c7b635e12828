-- What did the model get worse at between two versions? By task, its mean reward in the rollouts that begun about version a and
-- about version b (each with the window versions behind it), training and evals apart; the largest losses that are no accident
-- first: z is the difference in standard errors. By default a is where the run begins and b where it is. SET VARIABLE a = 100,
-- b, window and least (rollouts on either side; 2) for others.
WITH bounds AS (
    SELECT coalesce(getvariable('a'), min(policy_start)) AS a,
           coalesce(getvariable('window'), greatest(1, (max(policy_start) - min(policy_start)) // 5)) AS width,
           coalesce(getvariable('b'), max(policy_start) - width + 1) AS b
    FROM rollouts
), played AS (
    SELECT env, eval, task_index, reward, policy_start >= b AS late
    FROM rollouts, bounds
    WHERE reward IS NOT NULL AND (policy_start >= a AND policy_start < a + width OR policy_start >= b AND policy_start < b + width)
), compared AS (
    SELECT env, eval, task_index, count(*) FILTER (NOT late) AS rollouts_a, count(*) FILTER (late) AS rollouts_b,
           avg(reward) FILTER (NOT late) AS reward_a, avg(reward) FILTER (late) AS reward_b,
           sqrt(var_samp(reward) FILTER (NOT late) / count(*) FILTER (NOT late) + var_samp(reward) FILTER (late) / count(*) FILTER (late)) AS standard_error
    FROM played
    GROUP BY ALL
)
SELECT env, eval, task_index, reward_a, reward_b, reward_b - reward_a AS difference,
       CASE WHEN standard_error > 0 THEN difference / standard_error END AS z, rollouts_a, rollouts_b
FROM compared
WHERE least(rollouts_a, rollouts_b) >= coalesce(getvariable('least'), 2) AND reward_b < reward_a
ORDER BY coalesce(z, '-inf'::DOUBLE), difference, env, eval, task_index;
