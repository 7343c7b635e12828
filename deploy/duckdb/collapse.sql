-- Is the policy collapsing? What the trainer measured, in twenty spans of steps: entropy (towards 0: it samples the same again and
-- again, and groups have no differences to learn from), kl and ratio (far from 0 and 1: what is trained on is not what the policy
-- would say now), masked (tokens outside of the loss's bounds), the norm of the gradient and the loss. entropy_left is what is
-- left of the entropy of the first span; below 0.2 look at the rollouts, and at trainer.entropy_coef and trainer.lr.
WITH figures AS (
    SELECT step, name, last(value ORDER BY kafka_partition, kafka_offset) AS value
    FROM metrics
    WHERE stage = 'trainer' AND step IS NOT NULL AND name IN ('entropy', 'kl', 'ratio', 'masked', 'grad_norm', 'loss')
    GROUP BY ALL
), spans AS (
    SELECT *, (step - min(step) OVER ()) // greatest(1, ceil((max(step) OVER () - min(step) OVER () + 1) / 20)::BIGINT) AS span
    FROM figures
), told AS (
    SELECT min(step) AS from_step, max(step) AS to_step, avg(value) FILTER (name = 'entropy') AS entropy, avg(value) FILTER (name = 'kl') AS kl,
           avg(value) FILTER (name = 'ratio') AS ratio, avg(value) FILTER (name = 'masked') AS masked,
           avg(value) FILTER (name = 'grad_norm') AS grad_norm, max(value) FILTER (name = 'grad_norm') AS largest_grad_norm,
           avg(value) FILTER (name = 'loss') AS loss
    FROM spans
    GROUP BY span
)
SELECT from_step, to_step, entropy, entropy / nullif(first_value(entropy) OVER (ORDER BY from_step), 0) AS entropy_left, kl, ratio, masked,
       grad_norm, largest_grad_norm, loss
FROM told
ORDER BY from_step;
