-- What do the filters take? By environment, what was taken, and filter:
--   groups    of which nothing was left, by the first filter that took something; share is of the environment's rollouts
--   rollouts  that filters left out of groups which were trained (of whichever filter)
--   samples   that a filter dropped from groups which were trained, or where it only monitors would drop: look at these
--             before it drops
WITH scored AS (
    SELECT env, filter, reason, len(rollouts) AS rollouts, monitored,
           len(list_filter(rollouts, lambda r: r.fate = 'filtered')) AS left_out,
           sum(len(rollouts)) OVER (PARTITION BY env) AS of_env
    FROM sample_groups
), taken AS (
    SELECT env, filter, 'groups' AS what, count(*) AS groups, sum(rollouts) AS rollouts, NULL AS samples, sum(rollouts) / any_value(of_env) AS share
    FROM scored WHERE reason = 'filtered' GROUP BY ALL
    UNION ALL
    SELECT env, '', 'rollouts', count(*), sum(left_out), NULL, sum(left_out) / any_value(of_env)
    FROM scored WHERE reason = '' AND left_out > 0 GROUP BY env
    UNION ALL
    SELECT env, entry.key, 'samples', count(*), NULL, sum(entry.value), NULL
    FROM (SELECT env, unnest(map_entries(monitored)) AS entry FROM scored) GROUP BY ALL
)
SELECT * FROM taken ORDER BY env, what, filter;
