-- Which tasks are never solved? Training tasks whose best reward stays below the pass mark, those tried most often
-- first. The mark is 1; SET VARIABLE pass = 0.5 for another.
SELECT env, task_index, count(*) AS rollouts, max(reward) AS best, avg(reward) AS reward, max(policy_start) AS last_tried_at
FROM rollouts
WHERE eval = '' AND reward IS NOT NULL
GROUP BY env, task_index
HAVING max(reward) < coalesce(getvariable('pass'), 1)
ORDER BY rollouts DESC, env, task_index;
