# Run in the guest, beside agent.gz: installs the agent, starts it, and has it started at each boot if that is possible.
set -e
gzip -dc agent.gz >floe-guest
chmod 755 floe-guest
mkdir -p /usr/local/bin
cp -p floe-guest /usr/local/bin/.floe-guest.new
mv -f /usr/local/bin/.floe-guest.new /usr/local/bin/floe-guest
ln -sf floe-guest /usr/local/bin/floe-mpirun
agent=/usr/local/bin/floe-guest
if [ -d /run/systemd/system ]; then
  cat >/etc/systemd/system/floe-guest.service <<UNIT
[Unit]
Description=Lets programs clone this machine, and its host run commands in it
ConditionVirtualization=vm

[Service]
ExecStart=$agent serve
Restart=always
RestartSec=1
# What the host has started here outlives the agent.
KillMode=process
# If the kernel ends one of those because memory is short, the agent and the others go on.
OOMPolicy=continue
ManagedOOMPreference=omit

[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable floe-guest >&2
  systemctl restart floe-guest
  echo "systemd starts it at each boot"
  exit 0
fi
for pid in $(pidof floe-guest); do kill "$pid" 2>/dev/null || true; done
if [ -f /etc/inittab ] && [ -e /bin/busybox ] && grep -qs busybox /proc/1/cmdline /etc/inittab; then
  grep -q "$agent" /etc/inittab || echo "::respawn:$agent serve" >>/etc/inittab
  kill -HUP 1
  echo "init starts it at each boot"
  exit 0
fi
setsid "$agent" serve </dev/null >/dev/null 2>&1 &
echo "at its next boot it is to be started by hand: $agent serve"
