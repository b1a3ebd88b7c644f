#!/bin/sh
# Process 1 of a lab node until sshd takes its place: boot.sh NAME FILES
#
# Says "ready PID" (its process id outside) after its mounts, waits for a line that says that its network
# device is there, configures it, and becomes sshd. End of input instead of that line: the driver is gone.
set -eu
name=$1
files=$2
read -r pid rest </proc/self/stat # still the outer /proc
mount --all --fstab "$files/fstab"
echo "$name" >/proc/sys/kernel/hostname
mkdir -p /run/sshd /run/lock
echo reno >/proc/sys/net/ipv4/tcp_congestion_control
echo "ready $pid"
read -r go
ip -batch /run/lab/network.ip
if [ -s /run/lab/network.tc ]; then
    tc -batch /run/lab/network.tc
fi
cd /
exec /usr/sbin/sshd -D -e -f /run/lab/sshd_config </dev/null
