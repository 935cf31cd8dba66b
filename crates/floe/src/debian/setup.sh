#!/bin/sh
# mmdebstrap runs this outside of the new system, whose root directory is $1. $FLOE_BESIDE has what goes into it.
set -eu
root=$1
beside=$FLOE_BESIDE

# The kernel is unpacked, not installed: it is booted from the image, beside the disk, so that only its drivers matter here, and
# an upgrade in the guest must not take those away.
cd "$root/tmp"
mkdir kernel
package=$(APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache depends linux-image-cloud-amd64 |
  sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
if [ -z "$package" ]; then
  echo "E: this release has no package linux-image-cloud-amd64" >&2
  exit 1
fi
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq download "$package"
dpkg-deb -x "$package"_*.deb kernel
modules=kernel/lib/modules
[ -d "$modules" ] || modules=kernel/usr/lib/modules
mkdir -p "$root/usr/lib/modules"
mv "$modules"/* "$root/usr/lib/modules/"
mv kernel/boot/vmlinuz-* "$root/boot/"
rm -rf kernel "$package"_*.deb
cd /
chroot "$root" depmod "$(ls "$root/usr/lib/modules")"

install -m 755 "$beside/floe-guest" "$root/usr/local/bin/floe-guest"
ln -sf floe-guest "$root/usr/local/bin/floe-mpirun"
install -m 644 "$beside/floe-guest.service" "$root/etc/systemd/system/floe-guest.service"

echo "$FLOE_HOSTNAME" > "$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 %s\n::1 localhost ip6-localhost ip6-loopback\n' "$FLOE_HOSTNAME" > "$root/etc/hosts"
# the file system grows with its disk at the next boot
printf 'LABEL=floe / ext4 defaults,noatime,x-systemd.growfs 0 0\n' > "$root/etc/fstab"
printf '# the name server of floe'"'"'s networks\nnameserver 10.0.2.3\n' > "$root/etc/resolv.conf"
# each machine makes its own
: > "$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id" "$root/var/lib/systemd/random-seed"

# after cloud-init's, whose files begin with 10-
mkdir -p "$root/etc/systemd/network"
cat > "$root/etc/systemd/network/80-dhcp.network" <<'E'
[Match]
Type=ether
[Network]
DHCP=ipv4
[DHCPv4]
UseDNS=no
E
# A machine without a network is not waited for.
mkdir -p "$root/etc/systemd/system/systemd-networkd-wait-online.service.d"
cat > "$root/etc/systemd/system/systemd-networkd-wait-online.service.d/floe.conf" <<'E'
[Service]
ExecStart=
ExecStart=/lib/systemd/systemd-networkd-wait-online --any --timeout=30
E
# Only who may use the node reaches this console. root has no password, and nobody can log in as root elsewhere with one.
mkdir -p "$root/etc/systemd/system/serial-getty@ttyS0.service.d"
cat > "$root/etc/systemd/system/serial-getty@ttyS0.service.d/floe.conf" <<'E'
[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin root --noclear --keep-baud 115200,57600,38400,9600 - $TERM
E
: > "$root/etc/motd"

if [ -s "$beside/authorized_keys" ]; then
  mkdir -p "$root/root/.ssh"
  chmod 700 "$root/root/.ssh"
  install -m 600 "$beside/authorized_keys" "$root/root/.ssh/authorized_keys"
fi
# Keys of hosts that are in an image would be those of all its machines.
if [ -x "$root/usr/sbin/sshd" ]; then
  rm -f "$root"/etc/ssh/ssh_host_*
  cat > "$root/etc/systemd/system/floe-host-keys.service" <<'E'
[Unit]
Description=Makes this machine's own ssh keys
ConditionPathExistsGlob=!/etc/ssh/ssh_host_*_key
Before=ssh.service
[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
[Install]
WantedBy=multi-user.target
E
  chroot "$root" systemctl -q enable floe-host-keys.service
fi
# Only what floe can hand over is looked for, so that a boot without it is no slower.
if [ -d "$root/etc/cloud/cloud.cfg.d" ]; then
  echo 'datasource_list: [NoCloud, ConfigDrive, None]' > "$root/etc/cloud/cloud.cfg.d/95-floe.cfg"
fi

chroot "$root" systemctl -q enable systemd-networkd serial-getty@ttyS0.service floe-guest.service
# A machine fetches no packages by itself: what it writes is stored with each capture.
# And e2scrub is for volumes of LVM, yet takes an emulated machine twenty seconds to find none.
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service; do
  chroot "$root" systemctl -q disable "$unit" 2>/dev/null || true
done
rm -rf "$root"/var/log/apt "$root"/var/log/dpkg.log "$root"/var/log/bootstrap.log "$root"/var/cache/debconf/*-old
