-- Does the policy say the same again and again? By environment and twenty spans of versions: what share of a group's rollouts say
-- exactly what another one of their group says (all that the model said, in order), how many different texts a group has, and
-- what share of groups has only one. Groups of copies have no differences to learn from (filter zero_advantage takes them).
WITH texts AS (
    SELECT env, group_id, policy_start, md5(to_json(list_transform(list_filter(nodes, lambda n: n.role = 'assistant'), lambda n: n.content))) AS said
    FROM traces
    WHERE eval = '' AND len(errors) = 0 AND policy_start IS NOT NULL
), groups_of AS (
    SELECT env, group_id, min(policy_start) AS version, count(*) AS rollouts, count(DISTINCT said) AS different
    FROM texts GROUP BY ALL HAVING count(*) > 1
), spans AS (
    SELECT *, (version - min(version) OVER (PARTITION BY env)) // greatest(1, ceil((max(version) OVER (PARTITION BY env) - min(version) OVER (PARTITION BY env) + 1) / 20)::BIGINT) AS span
    FROM groups_of
)
SELECT env, min(version) AS from_version, max(version) AS to_version, count(*) AS groups, avg(different) AS different,
       sum(rollouts - different) / sum(rollouts) AS copies, avg((different = 1)::INT) AS groups_of_copies
FROM spans
GROUP BY env, span
ORDER BY env, from_version;
