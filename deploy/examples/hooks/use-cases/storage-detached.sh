#!/bin/sh
# A preTerminate hook as the command of the example program: the instance is not deleted before its node reports that no
# volume is attached. machine-api waits for volumes, too; this one shows how a storage system of its own is asked. Add
# the hook WaitForStorageDetach of my-custom-storage-detach-controller to the template of a MachineSet, and run
#
#     eval "$(windlass env)"
#     go run ./deploy/examples/hooks --owner my-custom-storage-detach-controller --command 'sh storage-detached.sh'
#
# The program claims the task, renews the claim while this runs, and completes or fails it by the exit code.
set -eu
test "$HOOK_NODE" != "" || { echo "$HOOK_MACHINE has no node, so nothing is attached to it"; exit 0; }
while volumes=$(windlass get node "$HOOK_NODE" -o 'jsonpath={.status.volumesAttached[*].name}') && test "$volumes" != ""; do
    sleep 1
done
echo "nothing is attached to $HOOK_NODE"
