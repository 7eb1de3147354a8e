#!/bin/sh
# A preDrain hook with curl: pods leave a node in the order of their label drain-order, which the drain of machine-api
# does not know. The drain that follows finds only the pods without that label. Add the hook OrderedDrain of
# my-app-migration-controller to the template of a MachineSet, and run
#
#     eval "$(windlass env)"
#     sh ordered-drain.sh [--once]
set -eu
owner=my-app-migration-controller

post() { # PATH JSON
    $CURL -X POST -H 'Content-Type: application/json' -d "$2" "$WINDLASS_URL$1"
}

tasks() {
    $CURL "$WINDLASS_URL/v1/hooktasks?fieldSelector=spec.owner=$owner" |
        grep -o '"name": *"[0-9a-z]*-predrain-[0-9a-f]*"' | sed 's/.*"\(.*\)"/\1/'
}

pods() { # NODE: their order, namespace and name
    windlass get pods -A --field-selector "spec.nodeName=$1" -l drain-order \
        -o 'jsonpath={range .items[*]}{.metadata.labels.drain-order} {.metadata.namespace} {.metadata.name}{"\n"}{end}' | sort -n
}

work() { # TASK
    post "/v1/hooktasks/$1:claim" '{}' >/dev/null || return 0 # another process has it
    machine=$(windlass get hooktask "$1" -o 'jsonpath={.spec.machineRef.name}')
    node=$(windlass get hooktask "$1" -o 'jsonpath={.spec.nodeName}')
    test "$node" = "" || windlass adm cordon "$node" >/dev/null
    moved=0
    while pod=$(pods "${node:-none}" | head -1) && test "$pod" != ""; do
        set -- "$1" $pod
        # Refused while a disruption budget allows none: it is asked for again.
        post "/v1/namespaces/$3/pods/$4/eviction" '{}' >/dev/null || true
        post "/v1/hooktasks/$1:renew" "{\"message\":\"moving $4, of order $2\"}" >/dev/null
        windlass wait "pod/$4" -n "$3" --for=delete --timeout=5s >/dev/null 2>&1 && moved=$((moved + 1))
    done
    post "/v1/hooktasks/$1:complete" "{\"message\":\"$moved pods were moved in order\"}" >/dev/null
    echo "$machine may be drained: $moved pods were moved in order"
    test "$once" = "" || exit 0
}

once=${1:-}
while :; do
    for task in $(tasks); do
        work "$task"
    done
    sleep 1
done
