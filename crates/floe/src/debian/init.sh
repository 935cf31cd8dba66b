#!/bin/busybox sh
# The initial ramdisk's only program: loads the drivers, mounts the root file system, and hands over to the system on it.
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
load() { while read -r module; do insmod "/modules/$module"; done < "/modules/$1" 2>/dev/null; }
load order
root=/dev/vda init=/sbin/init
for word in $(cat /proc/cmdline); do
  case $word in
    root=*) root=${word#root=} ;;
    init=*) init=${word#init=} ;;
  esac
done
device() { case $root in LABEL=* | UUID=*) findfs "$root" 2>/dev/null ;; *) echo "$root" ;; esac; }
tries=0
until disk=$(device) && [ -b "$disk" ]; do
  # not on a virtio card; others take longer to be found
  [ $tries != 5 ] || load more
  [ $tries != 200 ] || break
  sleep 0.1
  tries=$((tries + 1))
done
if ! mount -t ext4 "$disk" /mnt; then
  echo "floe: no root file system on $root"
  exec sh </dev/console >/dev/console 2>&1
fi
mount --move /dev /mnt/dev
umount /proc /sys
exec switch_root /mnt "$init"
