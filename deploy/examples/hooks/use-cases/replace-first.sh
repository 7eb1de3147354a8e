#!/bin/sh
# A preDrain hook with grpcurl: a machine is not drained before its set has another machine in its place, whose node is
# Ready. Add the hook ReplaceFirst of my-replacement-operator to the template of a MachineSet, and run
#
#     eval "$(windlass env)"
#     sh replace-first.sh [--once]
#
# Two of these programs do not work on the same task: the second one's claim is refused.
set -eu
owner=my-replacement-operator
api=windlass.hook.v1.HookTaskService

call() { # METHOD JSON
    $GRPCURL -d "$2" "$WINDLASS_SERVER" "$api/$1"
}

# The names of the tasks: "name" occurs in machineRef, too, but only a task's name has the point in it.
tasks() {
    call ListHookTasks "{\"fieldSelector\":\"spec.owner=$owner\"}" |
        sed -n 's/.*"name": "\([0-9a-z]*-predrain-[0-9a-f]*\)".*/\1/p'
}

work() { # TASK
    call ClaimHookTask "{\"name\":\"$1\"}" >/dev/null || return 0 # another process has it
    machine=$(windlass get hooktask "$1" -o 'jsonpath={.spec.machineRef.name}')
    set=$(windlass get machine "$machine" -o 'jsonpath={.metadata.ownerReferences[0].name}')
    while :; do
        want=$(windlass get machineset "$set" -o 'jsonpath={.spec.replicas}')
        ready=$(windlass get machineset "$set" -o 'jsonpath={.status.readyReplicas}')
        test "${ready:-0}" -lt "$want" || break # a machine that is being deleted is no replica
        call RenewHookTask "{\"name\":\"$1\",\"message\":\"${ready:-0} of $want machines of $set are ready\"}" >/dev/null
        sleep 1
    done
    call CompleteHookTask "{\"name\":\"$1\",\"message\":\"$ready of $want machines of $set are ready\"}" >/dev/null
    echo "$machine may be drained: $ready of $want machines of $set are ready"
    test "$once" = "" || exit 0
}

once=${1:-}
while :; do
    for task in $(tasks); do
        work "$task"
    done
    sleep 1
done
