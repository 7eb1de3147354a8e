#!/bin/sh
# A preTerminate hook as the command of the example program: after the drain no pod writes logs any more, and the exporter
# on the node gets some time to send what it has. Add the hook FlushLogs of my-log-operator to the template of a
# MachineSet, and run
#
#     eval "$(windlass env)"
#     go run ./deploy/examples/hooks --owner my-log-operator --work 1s --command 'sh flush-logs.sh'
#
# Set --work to how long the exporter needs.
set -eu
left=$(windlass get pods -A --field-selector "spec.nodeName=$HOOK_NODE" -o 'jsonpath={range .items[*]}{.metadata.name} {end}')
echo "the logs of $HOOK_NODE are complete; pods that stay to its end: ${left:-none}"
