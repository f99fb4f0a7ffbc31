# Removes what a parent leaves behind, however it ends.
#
# $1     the directory to remove; empty if it is to stay
# stdin  a pipe from the parent. Each line is the process group of the server that now
#        runs, or empty when none does. The pipe ends with the parent, even when that is
#        killed by SIGKILL.

# A service manager signals the whole service at once. The guard must outlive its parent.
trap '' HUP INT TERM

server=
while read -r line; do
    server=$line
done

# Nothing has to be shut down cleanly: either the data is about to go, or whatever the server
# acknowledged is in its log. The whole group: a server that rewrites its log has a child, which
# would outlive it.
if [ -n "$server" ]; then
    kill -s KILL -- "-$server"
fi

[ -n "$1" ] || exit 0

# A process that was just killed may still be creating a file: then `rm` finds the
# directory not empty, and another try helps.
tries=0
until rm -rf -- "$1"; do
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || exit 1
    sleep 1
done
