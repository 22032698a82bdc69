# shellcheck shell=bash
# The words with which hosts are written. Sourced by run, in an enclosure of its own.
#
#   fault "what users feel" "where it is lost, and why"
#   healthy "what is odd about it"
#   node NAME…               network namespaces; router NAME…: which forward
#   link A IF ADDR B IF ADDR a veth pair; ADDR is -, or ADDRESS/LENGTH[,ADDRESS/LENGTH…]
#   switch NAME…             a bridge of its own; plug SWITCH NODE IF ADDR: a cable to it
#   default NODE VIA…        default routes, IPv4 and IPv6
#   on NODE COMMAND…         run it there; set_ NODE KEY=VALUE…: sysctl
#   gw COMMAND…, rules, ruleset   on the gateway: any; iptables, a rule a line; nft, from stdin
#   typical [6]              client 198.51.100.10 – switch wan – 198.51.100.1 wan0 gw lan0
#                            192.168.1.1 – switch lan – server 192.168.1.10, pc 192.168.1.20;
#                            with 6 also 2001:db8:1:: outside and 2001:db8:2:: inside
#   serve tcp|udp|ftp NODE PORT [bind=ADDR (tcp, empty: both families) delay=SECONDS answer=no]
#   ask NODE tcp|udp|ftp|ping ADDR PORT RATE [OPTION…]   for up to 60 s, in the background:
#     from=ADDR port=SOURCE (udp: one flow; echo=y: answers are answered) mark=N timeout=SECONDS for=SECONDS after=SECONDS
#     up=BYTES down=BYTES  of a request and its answer; requests=N gap=SECONDS  on a connection
#     want=NODE  who must answer; answer=no; abort=1  ends by reset; ping: pmtu=do
out=${out:?}
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

fault() { printf 'fault\nfelt: %s\nwhy: %s\n' "$1" "$2" >"$out/truth.txt"; }
healthy() { printf 'healthy\nodd: %s\n' "$1" >"$out/truth.txt"; }
on() { local node=$1 && shift && ip netns exec "$node" "$@"; }
set_() { local node=$1 && shift && on "$node" sysctl -qw "$@"; }
gw() { on gw "$@"; }
ruleset() { on gw nft -f -; }
rules() {
  local line
  while read -r line; do
    # shellcheck disable=SC2086 # a rule is words
    case $line in '' | '#'*) ;; -6*) on gw ip6tables -w ${line#-6} ;; *) on gw iptables -w $line ;; esac
  done
}
node() {
  local name
  for name; do
    ip netns add "$name"
    set_ "$name" net.ipv6.conf.{all,default}.accept_dad=0 net.ipv4.ping_group_range='0 2147483647'
    ip -n "$name" link set lo up
  done
}
router() {
  node "$@"
  local name
  for name; do set_ "$name" net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; done
}
switch() {
  node "$@"
  local name
  for name; do
    set_ "$name" net.ipv6.conf.{all,default}.disable_ipv6=1
    ip -n "$name" link add br0 up type bridge
    set_ "$name" net.bridge.bridge-nf-call-{ip,ip6,arp}tables=0 2>/dev/null || true
  done
}
address() {
  local addr
  ip -n "$1" link set "$2" up
  [ "$3" = - ] || for addr in ${3//,/ }; do ip -n "$1" addr add "$addr" dev "$2"; done
}
link() {
  ip -n "$1" link add "$2" type veth peer name "$5" netns "$4"
  address "$1" "$2" "$3"
  address "$4" "$5" "$6"
}
plug() {
  link "$2" "$3" "$4" "$1" "$2-$3" -
  ip -n "$1" link set "$2-$3" master br0
}
default() {
  local node=$1 via
  shift
  for via; do ip -n "$node" route add default via "$via"; done
}
typical() {
  local six=${1:+y}
  router gw
  node client server pc
  switch wan lan
  plug wan client eth0 "198.51.100.10/24${six:+,2001:db8:1::10/64}"
  plug wan gw wan0 "198.51.100.1/24${six:+,2001:db8:1::1/64}"
  plug lan gw lan0 "192.168.1.1/24${six:+,2001:db8:2::1/64}"
  plug lan server eth0 "192.168.1.10/24${six:+,2001:db8:2::10/64}"
  plug lan pc eth0 "192.168.1.20/24${six:+,2001:db8:2::20/64}"
  default server 192.168.1.1 ${six:+2001:db8:2::1}
  default pc 192.168.1.1 ${six:+2001:db8:2::1}
  [ -z "$six" ] || default client 2001:db8:1::1
}
peers=0
peer() { # NODE serve|ask …
  local node=$1 && shift
  peers=$((peers + 1))
  FELT=$out/felt/$(printf %02d $peers) NODE=$node \
    exec ip netns exec "$node" "$here/peer.py" "$@" 2>>"$out/errors.txt" &
}
serve() { local kind=$1 node=$2 && shift 2 && peer "$node" serve "$kind" "$@"; }
ask() { local node=$1 && shift && peer "$node" ask "$@"; }
