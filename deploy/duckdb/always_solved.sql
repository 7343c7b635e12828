-- Which tasks are always solved, so that they teach nothing any more? Training tasks that every rollout of the newest versions
-- has solved (a reward of at least the pass mark, 1; SET VARIABLE pass), with the first version since which it is so. saved is what
-- share of the environment's rollouts they took there: a curriculum ([envs.NAME.curriculum]) would spend it elsewhere.
-- The newest versions are the last fifth of the run, or SET VARIABLE since = 300.
WITH recent AS (
    SELECT coalesce(getvariable('since'), max(policy_start) - (max(policy_start) - min(policy_start)) // 5) AS since
    FROM rollouts WHERE eval = ''
), played AS (
    SELECT env, task_index, policy_start, reward, reward >= coalesce(getvariable('pass'), 1) AS solved, policy_start >= since AS newest
    FROM rollouts, recent
    WHERE eval = '' AND reward IS NOT NULL AND policy_start IS NOT NULL
), tasks_of AS (
    SELECT env, task_index, count(*) FILTER (newest) AS rollouts, bool_and(solved) FILTER (newest) AS always,
           coalesce(max(policy_start) FILTER (NOT solved) + 1, min(policy_start)) AS solved_since
    FROM played
    GROUP BY ALL
)
SELECT env, task_index, rollouts, solved_since, rollouts / sum(rollouts) OVER (PARTITION BY env) AS saved
FROM tasks_of
WHERE rollouts > 0
QUALIFY always
ORDER BY rollouts DESC, env, task_index;
