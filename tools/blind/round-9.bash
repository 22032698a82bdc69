# shellcheck shell=bash
# Round 9: Docker, LXD, Kubernetes, offices, shops, two uplinks; then 20 healthy hosts.

bridge_host() { # BRIDGE NET CONTAINER… client – eth0 gw BRIDGE – containers NET.2, NET.3 …
  local bridge=$1 net=$2 name n=1
  shift 2
  router gw
  node client "$@"
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw eth0 198.51.100.1/24
  ip -n gw link add "$bridge" type bridge
  address gw "$bridge" "$net.1/24"
  for name; do
    n=$((n + 1))
    link gw "veth-$name" - "$name" eth0 "$net.$n/24"
    ip -n gw link set "veth-$name" master "$bridge"
    default "$name" "$net.1"
  done
}
docker_rules() { # as dockerd writes them
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-A DOCKER-USER -j RETURN
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A POSTROUTING -s 172.17.0.0/24 ! -o docker0 -j MASQUERADE
-t nat -A DOCKER -i docker0 -j RETURN
EOF
}
publish_port() { # PORT ADDR PORT
  rules <<EOF
-A DOCKER -d $2/32 ! -i docker0 -o docker0 -p tcp --dport $3 -j ACCEPT
-t nat -A POSTROUTING -s $2/32 -d $2/32 -p tcp --dport $3 -j MASQUERADE
-t nat -A DOCKER ! -i docker0 -p tcp --dport $1 -j DNAT --to-destination $2:$3
EOF
}
two_uplinks() { # client 192.0.2.10 – core – isp1 – wan1 gw; – isp2 – wan2 gw; lan as in typical
  router gw isp1 isp2
  node client server pc
  switch core lan
  link gw wan1 198.51.100.1/24 isp1 eth0 198.51.100.254/24
  link gw wan2 203.0.113.1/24 isp2 eth0 203.0.113.254/24
  plug core isp1 eth1 192.0.2.1/24
  plug core isp2 eth1 192.0.2.2/24
  plug core client eth0 192.0.2.10/24
  plug lan gw lan0 192.168.1.1/24
  plug lan server eth0 192.168.1.10/24
  plug lan pc eth0 192.168.1.20/24
  default server 192.168.1.1
  default pc 192.168.1.1
  default gw 198.51.100.254
  ip -n client route add 198.51.100.0/24 via 192.0.2.1
  ip -n client route add 203.0.113.0/24 via 192.0.2.2
}
isps_filter() { # each takes only packets from its own addresses (BCP 38)
  on isp1 nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; }; add rule ip f c iifname eth0 ip saddr != 198.51.100.0/24 drop'
  on isp2 nft 'add table ip f; add chain ip f c { type filter hook forward priority 0; }; add rule ip f c iifname eth0 ip saddr != 203.0.113.0/24 drop'
}
one_isp() { # MTU: pc 192.168.1.20 – lan0 gw wan0 – (MTU) – isp – www 192.0.2.10
  router gw isp
  node www pc
  switch lan
  link gw wan0 198.51.100.1/24 isp eth0 198.51.100.254/24
  link isp eth1 192.0.2.1/24 www eth0 192.0.2.10/24
  ip -n gw link set wan0 mtu "$1"
  ip -n isp link set eth0 mtu "$1"
  plug lan gw lan0 192.168.1.1/24
  plug lan pc eth0 192.168.1.20/24
  default pc 192.168.1.1
  default gw 198.51.100.254
  default www 192.0.2.1
}
with_branch() { # erp 10.20.0.10 – branch – tunnel – gw
  router branch
  node erp
  plug wan branch eth0 198.51.100.20/24
  link branch eth1 10.20.0.1/24 erp eth0 10.20.0.10/24
  default erp 10.20.0.1
  ip -n gw link add vpn0 type vxlan id 42 local 198.51.100.1 remote 198.51.100.20 dstport 4789 dev wan0
  ip -n branch link add vpn0 type vxlan id 42 local 198.51.100.20 remote 198.51.100.1 dstport 4789 dev eth0
  address gw vpn0 10.255.0.1/30
  address branch vpn0 10.255.0.2/30
  ip -n gw route add 10.20.0.0/24 via 10.255.0.2
  ip -n branch route add 192.168.1.0/24 via 10.255.0.1
  on branch nft -f - <<'EOF'
table ip fw {
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname vpn0 ip saddr 192.168.1.0/24 accept; }
}
EOF
}

kube_rules() { # as kube-proxy writes them: a node port, a cluster address, two pods
  rules <<'EOF'
-N KUBE-SERVICES
-N KUBE-FORWARD
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp --dport 8080 -m comment --comment default/staging:no-endpoints -j REJECT --reject-with icmp-port-unreachable
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-SVC
-t nat -N KUBE-POSTROUTING
-t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-t nat -A PREROUTING -d 10.96.0.20/32 -p tcp --dport 80 -j KUBE-SVC
-t nat -A PREROUTING -p tcp -m addrtype --dst-type LOCAL --dport 30080 -j KUBE-MARK-MASQ
-t nat -A PREROUTING -p tcp -m addrtype --dst-type LOCAL --dport 30080 -j KUBE-SVC
-t nat -A KUBE-SVC -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.0.2:8080
-t nat -A KUBE-SVC -p tcp -j DNAT --to-destination 10.244.0.3:8080
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
-t nat -A POSTROUTING -s 10.244.0.0/24 ! -d 10.244.0.0/24 -j MASQUERADE
EOF
}

shop-dead-after-container-restart() {
  fault "the shop on port 80 times out since the containers were restarted; the API on 9000 works" \
    "DNAT still leads to 172.17.0.9:80, the address the container had before; it has 172.17.0.3 now, and nobody answers ARP for .9 on docker0"
  bridge_host docker0 172.17.0 api shop
  docker_rules
  publish_port 9000 172.17.0.2 9000
  publish_port 80 172.17.0.9 80
  serve tcp api 9000
  serve tcp shop 80
  ask client tcp 198.51.100.1 9000 3
  ask client tcp 198.51.100.1 80 6
}

lxd-guests-offline-since-docker() {
  fault "guests on lxdbr0 cannot get out at all; Docker's containers can" \
    "Docker set the iptables FORWARD policy to DROP, and has rules for docker0 only; LXD's own nft table accepts, which does not help"
  bridge_host docker0 172.17.0 web
  docker_rules
  publish_port 80 172.17.0.2 80
  node guest
  link gw lxdbr0 10.97.5.1/24 guest eth0 10.97.5.20/24
  default guest 10.97.5.1
  ruleset <<'EOF'
table inet lxd {
  chain fwd.lxdbr0 { type filter hook forward priority filter; policy accept; ip version 4 oifname lxdbr0 accept; ip version 4 iifname lxdbr0 accept; }
  chain pstrt.lxdbr0 { type nat hook postrouting priority srcnat; policy accept; ip saddr 10.97.5.0/24 ip daddr != 10.97.5.0/24 masquerade; }
}
EOF
  serve tcp web 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 3
  ask guest tcp 198.51.100.10 443 5
}

no-internet-from-new-nat-instance() {
  fault "no machine of the private subnet reaches anything outside" \
    "MASQUERADE is for -o eth0, but the interface is called wan0 on the new instance: packets leave with their private source address, and no answer can come back"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -o eth0 -j MASQUERADE
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -s 192.168.1.0/24 -j ACCEPT
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 25
  ask server ping 198.51.100.10 - 2
}

camera-without-picture() {
  fault "the camera's forwarded port times out from outside; the web server beside it works" \
    "the camera's default gateway is still the old router 192.168.1.254: SYNs leave gw by lan0 and the answers never come back to it"
  typical
  node cam
  router oldbox
  plug lan cam eth0 192.168.1.30/24
  plug lan oldbox eth0 192.168.1.254/24
  ip -n oldbox route add blackhole default
  default cam 192.168.1.254
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 554 -j DNAT --to-destination 192.168.1.30:554
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp cam 554
  serve tcp server 80
  ask client tcp 198.51.100.1 554 3
  ask client tcp 198.51.100.1 80 3
}

own-site-not-from-the-office() {
  fault "the office cannot open its own site by its public name; the world can" \
    "hairpin without SNAT: the server answers the PC directly on the LAN, from 192.168.1.10, which the PC rejects; gw sees SYNs only, in and out of lan0"
  typical
  set_ gw net.ipv4.conf.{all,default,lan0}.send_redirects=0
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 198.51.100.1 443 4
}

all-dead-after-patch-night() {
  fault "nothing passes since the reboot: neither the forwarded mail server nor the PCs" \
    "net.ipv4.ip_forward is 0 (it had only been set by hand)"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 25,587,993 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  set_ gw net.ipv4.ip_forward=0
  serve tcp server 25
  serve tcp client 443
  ask client tcp 198.51.100.1 25 3
  ask pc tcp 198.51.100.10 443 6
}

second-line-takes-no-calls() {
  fault "the forwarded port answers on the first line; on the second it times out" \
    "strict rp_filter on wan2: the route to the clients is by wan1, so what comes in by wan2 is dropped before it is translated (the policy routing for answers is right)"
  two_uplinks
  isps_filter
  ip -n gw route add default via 203.0.113.254 table 102
  ip -n gw rule add fwmark 2 table 102
  set_ gw net.ipv4.conf.{all,wan1,wan2}.rp_filter=1
  rules <<'EOF'
-t mangle -A PREROUTING -i wan2 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan+ -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 4
  ask client tcp 203.0.113.1 443 5
}

vpn-only-on-the-old-address() {
  fault "the VPN portal (8443) times out on the new provider's address, and works on the old one's" \
    "no policy routing: answers to what came in by wan2 leave by the default route, wan1, from 203.0.113.1, and the first provider drops them"
  two_uplinks
  isps_filter
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname { wan1, wan2 } tcp dport 8443 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname { wan1, wan2 } ip saddr 192.168.1.0/24 masquerade; }
}
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 8443 2
  ask client tcp 203.0.113.1 8443 5
}

pages-hang-since-new-line() {
  fault "connections open and small answers come; pages and downloads hang" \
    "the line's MTU is 1400, the SYNs' MSS is not clamped (1460), and the provider sends no ICMP: large segments from outside never arrive at wan0"
  one_isp 1400
  on isp iptables -A OUTPUT -p icmp -j DROP
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -m conntrack --ctstate INVALID -j DROP
EOF
  serve tcp www 443
  ask pc tcp 192.0.2.10 443 2 down=200
  ask pc tcp 192.0.2.10 443 5 down=120000
}

chat-fails-at-peak() {
  fault "most new connections to the chat service time out once a hundred are open" \
    "SNAT has only the ports 50000-50099 of one address for a destination to which several hundred long connections are wanted"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -p tcp -j SNAT --to-source 198.51.100.1:50000-50099
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp client 5222
  ask pc tcp 198.51.100.10 5222 35 requests=4 gap=6 timeout=1.5
}

database-sessions-freeze() {
  fault "the first query works; after a few seconds of silence the session hangs" \
    "the conntrack timeout of established TCP is 4 s; the next packet is new without SYN, and FORWARD drops such"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=4
  rules <<'EOF'
-A FORWARD -p tcp ! --syn -m conntrack --ctstate NEW -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 5432
  ask client tcp 198.51.100.1 5432 4 requests=3 gap=6
}

shop-slow-in-the-campaign() {
  fault "most customers wait or give up; a few get through at once" \
    "a SYN flood guard in FORWARD takes 5 SYNs per second from all together, and drops the rest of 40 per second"
  typical
  rules <<'EOF'
-N SYN_FLOOD
-A SYN_FLOOD -m limit --limit 5/s --limit-burst 10 -j RETURN
-A SYN_FLOOD -j DROP
-A FORWARD -i wan0 -p tcp --syn -j SYN_FLOOD
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 40 timeout=1.5
}

one-branch-locked-out() {
  fault "one branch office cannot reach the portal; all others can" \
    "the branch's address (one NAT address for all its users) is in the banned set of the gateway, dropped in raw PREROUTING before DNAT"
  typical
  node branch
  plug wan branch eth0 198.51.100.77/24
  ruleset <<'EOF'
table inet f2b {
  set banned { type ipv4_addr; flags interval; elements = { 198.51.100.77, 203.0.113.0/28, 192.0.2.55 } }
  chain prerouting { type filter hook prerouting priority raw; iifname wan0 ip saddr @banned drop; }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  ask branch tcp 198.51.100.1 443 4
}

ftp-listing-hangs() {
  fault "FTP to suppliers: login works, every listing or transfer hangs" \
    "FORWARD lets only ports 21, 80, 443 and RELATED out, but no conntrack helper is assigned to port 21 (the automatic assignment is gone): passive data connections are dropped by the policy"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p tcp -m multiport --dports 21,80,443 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp client 21
  serve tcp client 443
  ask pc ftp 198.51.100.10 21 3
  ask pc tcp 198.51.100.10 443 2
}

site-only-over-ipv4() {
  fault "the site answers over IPv4; over IPv6 it is dead" \
    "the inet input chain's policy drops ICMPv6, neighbour discovery with it: nobody outside resolves gw's IPv6 address (and gw nobody's)"
  typical 6
  ruleset <<'EOF'
table inet filter {
  chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; tcp dport 22 accept; icmp type echo-request accept; }
}
table inet nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 meta nfproto ipv4 tcp dport 443 dnat ip to 192.168.1.10; iifname wan0 meta nfproto ipv6 tcp dport 443 dnat ip6 to 2001:db8:2::10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 meta nfproto ipv4 masquerade; }
}
EOF
  serve tcp server 443 bind=
  ask client tcp 198.51.100.1 443 3
  ask client tcp 2001:db8:1::1 443 5
}

resolver-mute-since-rollout() {
  fault "one busy resolver upstream gets no answer since the DNS pod was replaced; others do" \
    "its flow (always the same source port) has a conntrack entry to the old pod 10.244.0.5, which each query renews; the new rule to 10.244.0.2 is only for new flows"
  bridge_host cni0 10.244.0 dns
  rules <<'EOF'
-t nat -N KUBE-SEP-DNS
-t nat -A KUBE-SEP-DNS -p udp -j DNAT --to-destination 10.244.0.5:53
-t nat -A PREROUTING -d 198.51.100.1 -p udp --dport 30053 -j KUBE-SEP-DNS
-t nat -A POSTROUTING -s 10.244.0.0/24 ! -d 10.244.0.0/24 -j MASQUERADE
EOF
  serve udp dns 53
  ask client udp 198.51.100.1 30053 6 port=40053 after=0
  sleep 1.5
  rules <<<"-t nat -R KUBE-SEP-DNS 1 -p udp -j DNAT --to-destination 10.244.0.2:53"
  ask client udp 198.51.100.1 30053 2
}

every-third-api-call-refused() {
  fault "a third of the API calls are refused at once" \
    "of three backends 192.168.1.20 runs no server on 8080 any more: its RSTs are passed back"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  ruleset <<'EOF'
table ip lb {
  chain prerouting { type nat hook prerouting priority dstnat; policy accept; ip daddr 198.51.100.1 tcp dport 8080 dnat to numgen inc mod 3 map { 0 : 192.168.1.10, 1 : 192.168.1.11, 2 : 192.168.1.20 }; }
  chain postrouting { type nat hook postrouting priority srcnat; policy accept; ip saddr 198.51.100.0/24 oifname lan0 masquerade; }
}
EOF
  serve tcp server 8080
  ask client tcp 198.51.100.1 8080 30
}

admin-page-times-out() {
  fault "the router's admin page on port 8080 times out from the LAN" \
    "DNAT to 127.0.0.1:80, where the admin server listens, without route_localnet: the packets are martians and dropped"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i lan0 -d 192.168.1.1 -p tcp --dport 8080 -j DNAT --to-destination 127.0.0.1:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 80 bind=127.0.0.1
  serve tcp client 443
  ask pc tcp 192.168.1.1 8080 3
  ask pc tcp 198.51.100.10 443 3
}

plain-http-times-out() {
  fault "from the LAN http:// times out; https:// works" \
    "port 80 is redirected to the proxy on gw, port 3128, which INPUT (policy DROP) does not accept from the LAN"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -i lan0 -p tcp -m multiport --dports 22,53,80 -j ACCEPT
-A INPUT -i lan0 -p udp --dport 53 -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-t nat -A PREROUTING -i lan0 -p tcp --dport 80 -j REDIRECT --to-ports 3128
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 3128
  serve tcp client 443
  ask pc tcp 198.51.100.10 80 5
  ask pc tcp 198.51.100.10 443 5
}

app-refused-since-firewall-restart() {
  fault "the published port is refused at once since the firewall script ran; containers reach the outside" \
    "the script flushed nat PREROUTING and OUTPUT: Docker's chain DOCKER with the DNAT rule is there, but nothing jumps to it, so gw itself answers with RST"
  bridge_host docker0 172.17.0 app
  docker_rules
  publish_port 8080 172.17.0.2 80
  rules <<'EOF'
-t nat -F PREROUTING
-t nat -F OUTPUT
EOF
  serve tcp app 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 6
  ask app tcp 198.51.100.10 443 2
}

forward-dead-since-upgrade() {
  fault "the forwarded remote desktop times out since the upgrade of the distribution; PCs can surf" \
    "the old rules are still loaded by iptables-legacy, whose FORWARD chain drops what comes from wan0 and is not for port 25; the new nft rules accept it, but both are asked"
  typical
  gw iptables-legacy -P FORWARD DROP
  gw iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
  gw iptables-legacy -A FORWARD -i lan0 -j ACCEPT
  gw iptables-legacy -A FORWARD -i wan0 -p tcp --dport 25 -j ACCEPT
  ruleset <<'EOF'
table inet firewall {
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname lan0 accept; iifname wan0 ct status dnat accept; }
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 3389 dnat ip to 192.168.1.20; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp pc 3389
  serve tcp client 443
  ask client tcp 198.51.100.1 3389 4
  ask server tcp 198.51.100.10 443 4
}

every-other-page-fails() {
  fault "every second connection to the outside times out" \
    "the SNAT pool has 198.51.100.1 and .5; .5 is on no interface of gw, so nobody answers the provider's ARP for it"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -m statistic --mode nth --every 2 --packet 0 -j SNAT --to-source 198.51.100.5
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp client 443
  serve udp client 53
  ask pc tcp 198.51.100.10 443 8
  ask pc udp 198.51.100.10 53 5
}

erp-in-the-branch-times-out() {
  fault "the ERP server in the branch, through the VPN, times out; the internet works" \
    "MASQUERADE has no exception for the VPN: packets enter the tunnel from 10.255.0.1, which the branch's firewall does not accept"
  typical
  with_branch
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 ! -d 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp erp 8000
  serve tcp client 443
  ask pc tcp 10.20.0.10 8000 5
  ask pc tcp 198.51.100.10 443 3
}

jobs-lost-the-office-printer-server() {
  fault "containers cannot reach the print server 172.18.5.10 in the office since a compose project was started" \
    "its new bridge has 172.18.0.0/16, which is nearer than the route 172.16.0.0/12 to the office: packets go to that bridge, where nobody answers ARP"
  bridge_host docker0 172.17.0 jobs
  docker_rules
  router office
  node print db
  plug wan office eth0 198.51.100.254/24
  link office eth1 172.18.5.1/24 print eth0 172.18.5.10/24
  default print 172.18.5.1
  ip -n gw route add 172.16.0.0/12 via 198.51.100.254
  ip -n gw link add br-5c2e9d71 type bridge
  address gw br-5c2e9d71 172.18.0.1/16
  link gw veth-db - db eth0 172.18.0.2/16
  ip -n gw link set veth-db master br-5c2e9d71
  rules <<'EOF'
-A FORWARD -o br-5c2e9d71 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i br-5c2e9d71 ! -o br-5c2e9d71 -j ACCEPT
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-5c2e9d71 -j MASQUERADE
EOF
  serve tcp print 631
  serve tcp client 443
  ask jobs tcp 172.18.5.10 631 5
  ask jobs tcp 198.51.100.10 443 2
}

phones-dead-after-failover() {
  fault "since the switch to the second line phones stay unregistered; surfing works" \
    "the phones' UDP flows keep their SNAT entries with the first line's address 198.51.100.1, now leave by wan2 with it, and the second provider drops them"
  two_uplinks
  isps_filter
  node phone
  plug lan phone eth0 192.168.1.40/24
  default phone 192.168.1.1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o wan2 -j SNAT --to-source 203.0.113.1
EOF
  serve udp client 5060
  serve tcp client 443
  ask phone udp 192.0.2.10 5060 3 port=5060 after=0
  ask phone udp 192.0.2.10 5060 3 port=5062 after=0
  sleep 1.5
  ip -n gw route replace default via 203.0.113.254
  ask pc tcp 192.0.2.10 443 2
}

names-unresolved-since-tuning() {
  fault "DNS to the provider's resolver times out from the LAN; by address all works" \
    "raw PREROUTING takes UDP port 53 from tracking (NOTRACK): it is not masqueraded, and leaves with its private address"
  typical
  rules <<'EOF'
-t raw -A PREROUTING -p udp --dport 53 -j NOTRACK
-t raw -A PREROUTING -p udp --sport 53 -j NOTRACK
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp client 53
  serve tcp client 443
  ask pc udp 198.51.100.10 53 8
  ask pc tcp 198.51.100.10 443 4
}

openvpn-never-connects() {
  fault "OpenVPN clients never get an answer; the web server on the same machine works" \
    "DNAT leads to the alias 192.168.1.11; the UDP server answers from its main address .10, which belongs to no entry: the answer leaves as a new flow from another port"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp --dport 1194 -j DNAT --to-destination 192.168.1.11:1194
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.11:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 1194
  serve tcp server 443
  ask client udp 198.51.100.1 1194 5
  ask client tcp 198.51.100.1 443 3
}

home-automation-only-from-inside() {
  fault "the home automation is reached from the LAN, but not by the forwarded port" \
    "it is a macvlan container on gw's own lan0: gw and its macvlans cannot talk to each other, so what DNAT leads there finds nobody (ARP unanswered)"
  typical
  node box
  ip -n gw link add link lan0 name mv0 netns box type macvlan mode bridge
  address box mv0 192.168.1.50/24
  default box 192.168.1.1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8123 -j DNAT --to-destination 192.168.1.50
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp box 8123
  ask client tcp 198.51.100.1 8123 4
  ask pc tcp 192.168.1.50 8123 2
}

ipv6-dead-since-reconnect() {
  fault "since the line reconnected nothing works over IPv6 from the LAN; IPv4 does" \
    "the provider delegates 2001:db8:b2::/64 now, NETMAP still translates to the old prefix 2001:db8:a1::/64: answers go elsewhere"
  typical
  ip -n client addr add 2001:db8:1::10/64 dev eth0
  ip -n client route add 2001:db8:b2::/64 via 2001:db8:1::1
  ip -n gw addr add 2001:db8:1::1/64 dev wan0
  ip -n gw addr add fd00:1::1/64 dev lan0
  ip -n pc addr add fd00:1::20/64 dev eth0
  ip -n pc route add default via fd00:1::1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A POSTROUTING -s fd00:1::/64 -o wan0 -j NETMAP --to 2001:db8:a1::/64
EOF
  serve tcp client 443 bind=
  ask pc tcp 2001:db8:1::10 443 5
  ask pc tcp 198.51.100.10 443 3
}

home-workers-lost-the-file-server() {
  fault "home workers (10.8.0.0/24, by the VPN box in the LAN) cannot open the file server; its public web page works" \
    "SYNs go from the VPN box straight to the server, answers by gw, which has seen no SYN: INVALID, dropped in FORWARD"
  typical
  router vpnbox
  node home
  plug lan vpnbox eth0 192.168.1.2/24
  link vpnbox tun0 10.8.0.1/24 home eth0 10.8.0.6/24
  default home 10.8.0.1
  ip -n gw route add 10.8.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,default,lan0}.send_redirects=0
  set_ server net.ipv4.conf.{all,eth0}.accept_redirects=0
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 445
  serve tcp server 80
  ask home tcp 192.168.1.10 445 4
  ask client tcp 198.51.100.1 80 3
}

noise-from-the-internet() {
  healthy "a scanner gets nothing (its TCP connections time out: INPUT policy DROP), a banned host knocks on the web server in vain; customers are served"
  typical
  node scanner banned
  plug wan scanner eth0 198.51.100.66/24
  plug wan banned eth0 198.51.100.67/24
  ruleset <<'EOF'
table inet filter {
  set banned { type ipv4_addr; flags timeout; elements = { 198.51.100.67 timeout 1h } }
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iif lo accept; iifname lan0 accept; meta l4proto ipv6-icmp accept; icmp type echo-request limit rate 20/second accept; }
  chain forward { type filter hook forward priority filter; policy drop; ip saddr @banned counter drop; ct state established,related accept; iifname lan0 accept; ct status dnat accept; }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 443 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 6
  ask scanner tcp 198.51.100.1 23 2
  ask scanner tcp 198.51.100.1 3389 1
  ask scanner udp 198.51.100.1 5060 1 answer=no
  ask banned tcp 198.51.100.1 443 0.5
}

admin-port-for-the-chosen() {
  healthy "the forwarded port 8443 is for 198.51.100.32/27 alone: a stranger's attempts there time out, on purpose"
  typical
  node admin
  plug wan admin eth0 198.51.100.40/24
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -s 198.51.100.32/27 -d 192.168.1.10 -p tcp --dport 8443 -m comment --comment admins-only -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 443 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 443,8443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 6
  ask admin tcp 198.51.100.1 8443 3
  ask client tcp 198.51.100.1 8443 0.5
}

in-by-one-out-by-the-other() {
  healthy "the service address 198.18.0.10 is our own (both providers carry it): it comes in by wan2 and its answers leave by wan1; rp_filter is loose"
  two_uplinks
  set_ gw net.ipv4.conf.{all,wan1,wan2}.rp_filter=2
  ip -n gw addr add 198.18.0.10/32 dev lo
  ip -n isp2 route add 198.18.0.0/24 via 203.0.113.1
  ip -n isp1 route add 198.18.0.0/24 via 198.51.100.1
  ip -n client route add 198.18.0.0/24 via 192.0.2.2
  rules <<'EOF'
-t nat -A PREROUTING -d 198.18.0.10 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan+ -j SNAT --to-source 198.18.0.10
EOF
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.18.0.10 443 6
  ask pc tcp 192.0.2.10 80 4
}

spare-line-unplugged() {
  healthy "the backup line wan2 has no carrier; its route, of a worse metric, and its masquerade rule wait for it"
  typical
  node lte
  link gw wan2 203.0.113.2/30 lte eth0 203.0.113.1/30
  ip -n lte link set eth0 down
  ip -n gw route add default via 198.51.100.10 metric 100
  ip -n gw route add default via 203.0.113.1 dev wan2 metric 200 onlink
  set_ gw net.ipv4.conf.{all,wan2}.ignore_routes_with_linkdown=1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan2 -j MASQUERADE
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
EOF
  serve tcp client 443
  serve tcp server 80
  ask pc tcp 198.51.100.10 443 6
  ask client tcp 198.51.100.1 80 4
}

log-and-flow-collector() {
  healthy "syslog and NetFlow are forwarded to a collector which never answers: UDP one way, by design"
  typical
  node switch1
  plug wan switch1 eth0 198.51.100.31/24
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 udp dport { 514, 2055 } dnat to 192.168.1.10; iifname wan0 tcp dport 3000 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve tcp server 3000
  ask client udp 198.51.100.1 514 8 answer=no
  ask client udp 198.51.100.1 2055 5 port=40000 up=900
  ask switch1 udp 198.51.100.1 514 3 port=514
  ask client tcp 198.51.100.1 3000 3
}

ssh-after-knocking() {
  healthy "forwarded SSH opens after a knock on 7000 and 8000, which are dropped (the knocks time out)"
  typical
  ruleset <<'EOF'
table inet filter {
  set knocked { type ipv4_addr; flags dynamic,timeout; timeout 20s; }
  set open { type ipv4_addr; flags dynamic,timeout; timeout 1h; }
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname { lo, lan0 } accept
    meta l4proto ipv6-icmp accept
    icmp type echo-request accept
    iifname wan0 tcp dport 7000 add @knocked { ip saddr } drop
    iifname wan0 tcp dport 8000 ip saddr @knocked add @open { ip saddr } drop
  }
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname lan0 accept; tcp dport 22 ip saddr @open accept; tcp dport 80 ct status dnat accept; }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 2222 dnat to 192.168.1.10:22; iifname wan0 tcp dport 80 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 22
  serve tcp server 80
  ask client tcp 198.51.100.1 7000 0.2 timeout=0.3 after=0.1
  ask client tcp 198.51.100.1 8000 0.2 timeout=0.3 after=0.6
  sleep 1
  ask client tcp 198.51.100.1 2222 3
  ask client tcp 198.51.100.1 80 4
}

shaped-to-the-contract() {
  healthy "both directions are shaped (HTB, TBF) to what the line carries; the traffic stays below, no queue overflows"
  typical
  gw tc qdisc add dev wan0 root handle 1: htb default 20 r2q 200
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 20mbit ceil 20mbit burst 30k cburst 30k
  gw tc class add dev wan0 parent 1:1 classid 1:10 htb rate 2mbit ceil 20mbit prio 0 burst 30k cburst 30k
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 18mbit ceil 20mbit prio 1 burst 30k cburst 30k
  gw tc filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip protocol 17 0xff flowid 1:10
  gw tc qdisc add dev lan0 root tbf rate 50mbit burst 100k latency 400ms
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
EOF
  serve tcp client 443
  serve udp client 5060
  serve tcp server 80
  ask pc tcp 198.51.100.10 443 4 down=60000
  ask pc udp 198.51.100.10 5060 5
  ask client tcp 198.51.100.1 80 4 down=40000
}

timeouts-tuned-by-hand() {
  healthy "short conntrack timeouts for what is over or never began, DNS entries for 10 s; established TCP has two hours"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_{time_wait=10,fin_wait=20,close_wait=20,last_ack=10,syn_sent=20,syn_recv=20,established=7200}
  set_ gw net.netfilter.nf_conntrack_{udp_timeout=10,udp_timeout_stream=60,icmp_timeout=5,generic_timeout=60}
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE --random-fully
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
EOF
  serve tcp client 443
  serve udp client 53
  serve tcp server 443
  ask pc tcp 198.51.100.10 443 2 requests=4 gap=5
  ask pc udp 198.51.100.10 53 10
  ask server ping 198.51.100.10 - 2
  ask client tcp 198.51.100.1 443 15
}

impatient-visitors() {
  healthy "the application takes 0.3 s for an answer; a monitoring probe ends by reset, some visitors leave before the answer (they time out by their own will)"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -m conntrack --ctstate DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443 delay=0.3
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 443 3 abort=1
  ask client tcp 198.51.100.1 443 1 timeout=0.15
}

private-ranges-blackholed() {
  healthy "private ranges that are not ours are blackholed (RFC 6890), so that they never go to the provider; a laptop still looks for the printer of its owner's home (no answer)"
  typical
  ip -n gw route add default via 198.51.100.10
  ip -n gw route add blackhole 10.0.0.0/8
  ip -n gw route add blackhole 172.16.0.0/12
  ip -n gw route add blackhole 192.168.0.0/16
  ip -n gw route add unreachable 100.64.0.0/10
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
EOF
  serve tcp client 443
  serve tcp server 80
  ask pc tcp 198.51.100.10 443 5
  ask pc tcp 192.168.178.30 9100 0.4
  ask client tcp 198.51.100.1 80 5
}

limits-far-above-the-load() {
  healthy "limits per client (100 SYNs per second, 200 connections) and a SYN limit for all, which 12 connections per second do not reach"
  typical
  rules <<'EOF'
-N LIMITS
-A FORWARD -i wan0 -p tcp --syn -j LIMITS
-A LIMITS -m hashlimit --hashlimit-name web --hashlimit-mode srcip --hashlimit-above 100/sec --hashlimit-burst 200 -j DROP
-A LIMITS -p tcp -m connlimit --connlimit-above 200 --connlimit-mask 32 -j REJECT --reject-with tcp-reset
-A LIMITS -m limit --limit 500/s --limit-burst 1000 -j RETURN
-A LIMITS -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 12
  ask pc tcp 198.51.100.10 443 5
}

docker-with-things-at-rest() {
  healthy "a network of Docker without containers (no carrier), libvirt's virbr0 without guests, a forward to a lab machine that is switched on when needed: none is used now"
  bridge_host docker0 172.17.0 web
  docker_rules
  publish_port 80 172.17.0.2 80
  ip -n gw link add br-0a1b2c3d type bridge
  address gw br-0a1b2c3d 172.18.0.1/16
  ip -n gw link add virbr0 type bridge
  address gw virbr0 192.168.122.1/24
  rules <<'EOF'
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-0a1b2c3d -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
-t nat -A PREROUTING -i eth0 -p tcp --dport 2201 -m comment --comment lab-vm -j DNAT --to-destination 192.168.122.51:22
-I DOCKER-USER -i eth0 -d 192.168.122.51 -p tcp --dport 22 -j ACCEPT
-I DOCKER-USER -i virbr0 -j ACCEPT
-I DOCKER-USER -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o br-0a1b2c3d -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i br-0a1b2c3d ! -o br-0a1b2c3d -j ACCEPT
EOF
  serve tcp web 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 8
  ask web tcp 198.51.100.10 443 3
}

own-site-by-its-public-name() {
  healthy "hairpin that works: the office reaches its server by the public address, masqueraded on the way back into the LAN"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 192.168.1.10 -p tcp --dport 443 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.1 443 5
}

kubernetes-node() {
  healthy "kube-proxy's chains: two backends by chance, and a service without endpoints which is rejected (and nobody uses); marks that are set and cleared"
  bridge_host cni0 10.244.0 pod1 pod2
  kube_rules
  ip -n client route add 10.96.0.0/16 via 198.51.100.1
  serve tcp pod1 8080
  serve tcp pod2 8080
  serve tcp client 443
  ask client tcp 198.51.100.1 30080 10
  ask client tcp 10.96.0.20 80 4
  ask pod1 tcp 198.51.100.10 443 3
}

ftp-through-the-helper() {
  healthy "FORWARD lets only few ports out, and FTP's data connections as RELATED: the helper is assigned by a CT rule"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p tcp -m multiport --dports 21,443 -j ACCEPT
-t raw -A PREROUTING -i lan0 -p tcp --dport 21 -j CT --helper ftp
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp client 21
  serve tcp client 443
  ask pc ftp 198.51.100.10 21 3
  ask pc tcp 198.51.100.10 443 4
}

branch-with-the-same-network() {
  healthy "the LAN is shown to the outside as 10.77.1.0/24, one to one (NETMAP both ways), and its IPv6 prefix likewise"
  typical
  ip -n client route add 10.77.1.0/24 via 198.51.100.1
  ip -n client addr add 2001:db8:1::10/64 dev eth0
  ip -n client route add 2001:db8:b2::/64 via 2001:db8:1::1
  ip -n gw addr add 2001:db8:1::1/64 dev wan0
  ip -n gw addr add fd00:1::1/64 dev lan0
  ip -n pc addr add fd00:1::20/64 dev eth0
  ip -n pc route add default via fd00:1::1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -d 10.77.1.0/24 -j NETMAP --to 192.168.1.0/24
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j NETMAP --to 10.77.1.0/24
-6 -t nat -A POSTROUTING -s fd00:1::/64 -o wan0 -j NETMAP --to 2001:db8:b2::/64
EOF
  serve tcp server 445
  serve tcp client 443 bind=
  ask client tcp 10.77.1.10 445 5
  ask client ping 10.77.1.20 - 2
  ask pc tcp 198.51.100.10 443 4
  ask pc tcp 2001:db8:1::10 443 4
}

two-tenants-one-subnet() {
  healthy "two tenants with the same subnet and even the same address, kept apart by a conntrack zone of the original direction and a mark for the way back"
  typical
  switch lanb
  node pcb
  plug lanb gw lan1 192.168.1.1/32
  plug lanb pcb eth0 192.168.1.20/24
  default pcb 192.168.1.1
  ip -n gw route add 192.168.1.0/24 dev lan1 table 102
  ip -n gw rule add fwmark 2 table 102
  ruleset <<'EOF'
table ip tenants {
  chain raw { type filter hook prerouting priority raw; iifname lan1 ct original zone set 2; }
  chain mangle { type filter hook prerouting priority mangle; iifname lan1 ct mark set 2; iifname wan0 meta mark set ct mark; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp client 443
  serve udp client 53
  ask pc tcp 198.51.100.10 443 5
  ask pcb tcp 198.51.100.10 443 5
  ask pcb udp 198.51.100.10 53 3
}

resolver-without-tracking() {
  healthy "queries to gw's own resolver are not tracked, in both directions (much traffic, no NAT); the rest is masqueraded"
  typical
  ruleset <<'EOF'
table ip raw {
  chain prerouting { type filter hook prerouting priority raw; iifname lan0 ip daddr 192.168.1.1 udp dport 53 notrack; }
  chain output { type filter hook output priority raw; oifname lan0 ip saddr 192.168.1.1 udp sport 53 notrack; }
}
table ip filter {
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iif lo accept; iifname lan0 udp dport 53 accept; iifname lan0 tcp dport { 22, 53 } accept; icmp type echo-request accept; }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve udp gw 53
  serve tcp client 443
  ask pc udp 192.168.1.1 53 30
  ask pc tcp 198.51.100.10 443 5
}

branch-through-the-tunnel() {
  healthy "traffic to the branch goes untranslated through a tunnel (an ACCEPT before MASQUERADE), with clamped MSS; the rest is masqueraded"
  typical
  with_branch
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp erp 8000
  serve tcp client 443
  ask pc tcp 10.20.0.10 8000 4 down=50000 up=20000
  ask pc tcp 198.51.100.10 443 4
}

narrow-line-clamped() {
  healthy "a PPPoE line of MTU 1492 whose provider sends no ICMP: MSS is clamped, large transfers pass; pings of gw are limited"
  one_isp 1492
  on isp iptables -A OUTPUT -p icmp -j DROP
  rules <<'EOF'
-t mangle -A FORWARD -o wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A INPUT -i wan0 -p icmp --icmp-type echo-request -m limit --limit 20/s --limit-burst 40 -j ACCEPT
-A INPUT -i wan0 -p icmp --icmp-type echo-request -j DROP
EOF
  serve tcp www 443
  ask pc tcp 192.0.2.10 443 4 down=150000
  ask pc tcp 192.0.2.10 443 2 up=60000
  ask www ping 198.51.100.1 - 2
}
