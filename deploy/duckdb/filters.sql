-- What do the filters take? By environment and filter: mode 'drop' are groups of which nothing was left, named after the
-- first filter that took something, and with their share of the environment's rollouts; a row without a filter are rollouts
-- that were left out of groups which were trained. Mode 'monitor' are samples that a filter would take which only counts:
-- look at it before it drops.
WITH scored AS (
    SELECT env, filter, reason, len(rollouts) AS rollouts, monitored,
           len(list_filter(rollouts, lambda r: r.fate = 'filtered')) AS left_out,
           sum(len(rollouts)) OVER (PARTITION BY env) AS of_env
    FROM sample_groups
), taken AS (
    SELECT env, filter, 'drop' AS mode, count(*) AS groups, sum(rollouts) AS rollouts, NULL AS samples, sum(rollouts) / any_value(of_env) AS share
    FROM scored WHERE reason = 'filtered' GROUP BY ALL
    UNION ALL
    SELECT env, '', 'drop', count(*), sum(left_out), NULL, sum(left_out) / any_value(of_env)
    FROM scored WHERE reason = '' AND left_out > 0 GROUP BY env
    UNION ALL
    SELECT env, entry.key, 'monitor', count(*), NULL, sum(entry.value), NULL
    FROM (SELECT env, unnest(map_entries(monitored)) AS entry FROM scored) GROUP BY ALL
)
SELECT * FROM taken ORDER BY env, mode, filter;
