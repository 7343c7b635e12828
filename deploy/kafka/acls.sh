#!/bin/sh
# Gives every stage of a run the rights that acls.csv lists, by Kafka's own tool:
#
#   deploy/kafka/acls.sh demo kafka-acls.sh --bootstrap-server HOST:9093 --command-config admin.properties
#
# The users are demo.emitter, demo.scorer and so on (demo.setup and demo.audit for prl-stage --stage setup and audit; README.md
# says whose rights a command needs that reads one run and writes another). One call of the tool per user, operation and kind
# of pattern. With `echo` before the tool's name it shows the calls. To give other names to users, change the first column;
# tools that read the table itself (kafka-security-manager, Terraform) need no script.
set -eu
run=${1:?usage: acls.sh RUN KAFKA-ACLS-COMMAND...}
shift
[ $# -gt 0 ] || { echo 'usage: acls.sh RUN KAFKA-ACLS-COMMAND...' >&2; exit 2; }
sed "1d; s/<run>/$run/g" "$(dirname "$0")/acls.csv" | awk -F, '
  { key = $1 " " $5 " " tolower($3) " " $2; if (!(key in names)) order[++n] = key
    option = $2 == "TransactionalId" ? "--transactional-id" : "--" tolower($2)
    names[key] = names[key] " " option ($2 == "Cluster" ? "" : " " $4) }
  END { for (i = 1; i <= n; i++) { split(order[i], f, " ")
    print "--add --force --allow-principal " f[1] " --operation " f[2] " --resource-pattern-type " f[3] names[order[i]] } }' |
while read -r arguments; do
  # shellcheck disable=SC2086 # names of users and topics hold no spaces
  "$@" $arguments </dev/null
done
