# Run in the guest by the agent that it replaces, as: replace PATH DIR. The new program is PATH.floe-new, and was checked.
# DIR/good, made by the host once the new agent has answered it, ends this; without it, or if the new agent ends, the old one is
# put back, and DIR/failed says why.
path=$1 dir=$2 old=$PPID own=
GOOD_WAIT_S=90
trap '' HUP PIPE
arguments=$(tr '\0' ' ' <"/proc/$old/cmdline")
arguments=${arguments#* }

# A process that has ended and was not waited for has no program any more.
lives() { [ -e "/proc/$1/exe" ]; }

end() {
  kill "$1" 2>/dev/null
  n=0
  while lives "$1" && [ $n -lt 50 ]; do
    sleep 0.1
    n=$((n + 1))
    [ $n -lt 40 ] || kill -9 "$1" 2>/dev/null
  done
}

# With a unit of before, systemd ends the agent if the kernel ends a command because memory is short.
keep_through_shortage() {
  ! systemctl cat floe-guest | grep -q '^OOMPolicy=' || return 0
  mkdir -p /etc/systemd/system/floe-guest.service.d
  printf '[Service]\nOOMPolicy=continue\nManagedOOMPreference=omit\n' >/etc/systemd/system/floe-guest.service.d/memory.conf
  systemctl daemon-reload
}

# Ends the agent with this number, and starts what stands at the path now.
start_after() {
  if [ -d /run/systemd/system ] && systemctl -q is-enabled floe-guest; then
    keep_through_shortage
    systemctl restart floe-guest
    ! lives "$1" || end "$1" # somebody had started it by hand
  elif grep -qs "^[^#]*$path" /etc/inittab; then
    end "$1" # init starts it again
  else
    end "$1"
    setsid "$path" $arguments </dev/null >/dev/null 2>&1 &
    own=$!
  fi
}

serving() {
  for pid in $(pidof "${path##*/}"); do
    if tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q ' serve '; then echo "$pid"; return; fi
  done
}

back() {
  new=${own:-$(serving)}
  mv -f "$path.floe-old" "$path"
  start_after "${new:-none}"
  echo "$1" >"$dir/failed"
  exit 1
}

cp -p "$path" "$path.floe-old" && mv -f "$path.floe-new" "$path" || {
  rm -f "$path.floe-old" "$path.floe-new"
  echo "its program cannot be replaced; is the disk full?" >"$dir/failed"
  exit 1
}
start_after "$old"
n=0
while [ ! -e "$dir/good" ]; do
  [ -z "$own" ] || lives "$own" || back "it ended at once"
  [ $n -lt $GOOD_WAIT_S ] || back "it did not answer within $GOOD_WAIT_S seconds"
  sleep 1
  n=$((n + 1))
done
rm -rf "$path.floe-old" "$dir"
