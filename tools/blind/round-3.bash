# shellcheck shell=bash
# Round 3: as met on Docker hosts, Kubernetes nodes, routers at home and in offices, cloud NAT
# gateways and load balancers.

# A Docker host: containers c1 172.17.0.2 and c2 172.17.0.3 at docker0, Docker's own rules.
_docker() {
  router gw
  node client c1 c2
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  gw ip link add docker0 type bridge
  address gw docker0 172.17.0.1/16
  local i
  for i in 1 2; do
    link gw "veth$i" - "c$i" eth0 "172.17.0.$((i + 1))/16"
    gw ip link set "veth$i" master docker0
    default "c$i" 172.17.0.1
  done
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
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A DOCKER -i docker0 -j RETURN
EOF
}
_publish() { # PORT CONTAINER-ADDRESS PORT
  rules <<EOF
-t nat -A DOCKER ! -i docker0 -p tcp --dport $1 -j DNAT --to-destination $2:$3
-A DOCKER -d $2 ! -i docker0 -o docker0 -p tcp --dport $3 -j ACCEPT
-t nat -A POSTROUTING -s $2 -d $2 -p tcp --dport $3 -j MASQUERADE
EOF
}

# A Kubernetes node: pods pod1 10.244.0.11, pod2 10.244.0.12 and pod3 10.244.0.13 at cni0.
_kube() {
  router gw
  node client pod1 pod2 pod3
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  gw ip link add cni0 type bridge
  address gw cni0 10.244.0.1/24
  local i
  for i in 1 2 3; do
    link gw "veth$i" - "pod$i" eth0 "10.244.0.1$i/24"
    gw ip link set "veth$i" master cni0
    default "pod$i" 10.244.0.1
  done
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-NODEPORTS
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-POSTROUTING
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
EOF
}

firewall-of-its-own() {
  fault "the published web server times out" "a second firewall: table inet filter, forward, policy drop, has no rule for port 8080 of the server; iptables accepts it"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -d 192.168.1.10 -p tcp --dport 8080 -j ACCEPT
EOF
  ruleset <<'EOF'
table inet filter {
  chain forward {
    type filter hook forward priority filter + 10; policy drop;
    ct state established,related accept
    iifname lan0 oifname wan0 accept
  }
}
EOF
  serve tcp server 8080
  serve tcp client 443
  ask client tcp 198.51.100.1 80 4
  ask pc tcp 198.51.100.10 443 5
}

home-hairpin() {
  fault "the PC cannot open the server's public name, everybody else can" "no masquerade for LAN to LAN: the server at 192.168.1.10 answers the PC directly"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 6
  ask pc tcp 198.51.100.1 443 2
}

docker-localhost() {
  fault "curl localhost:8080 on the Docker host hangs; from outside it works" "own rules DNAT 127.0.0.1:8080 to the container: route_localnet is 0 and nothing masquerades 127.0.0.1"
  _docker
  _publish 8080 172.17.0.2 80
  rules <<'EOF'
-t nat -A OUTPUT -d 127.0.0.1 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
EOF
  serve tcp c1 80
  ask client tcp 198.51.100.1 8080 5
  ask gw tcp 127.0.0.1 8080 2
}

port-before-nat() {
  fault "the camera's web page times out from outside" "FORWARD accepts the public port 8443, but behind DNAT it is 443: policy DROP"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp -m tcp --dport 8443 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.20 -p tcp -m tcp --dport 22 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A PREROUTING -i wan0 -p tcp --dport 2222 -j DNAT --to-destination 192.168.1.20:22
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp pc 22
  ask client tcp 198.51.100.1 8443 2
  ask client tcp 198.51.100.1 2222 2
}

redirect-to-loopback() {
  fault "port 80 of the gateway is refused" "REDIRECT 80 to 8080, but the program listens at 127.0.0.1:8080 only"
  typical
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 80 redirect to :8080; }
}
EOF
  serve tcp gw 8080 bind=127.0.0.1
  serve tcp gw 22
  ask client tcp 198.51.100.1 80 3
  ask client tcp 198.51.100.1 22 1
}

dns-redirect-input() {
  fault "no name resolution in the LAN" "REDIRECT of port 53 to 5353, INPUT accepts 53 only: policy DROP"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -i lan0 -p udp --dport 53 -j ACCEPT
-A INPUT -i lan0 -p tcp --dport 22 -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-t nat -A PREROUTING -i lan0 -p udp --dport 53 -j REDIRECT --to-ports 5353
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp gw 5353
  serve tcp gw 22
  serve tcp client 443
  ask pc udp 192.168.1.1 53 3
  ask server tcp 198.51.100.10 443 5
  ask pc tcp 192.168.1.1 22 1
}

kube-endpoint-refuses() {
  fault "a third of the requests to the node port are refused" "pod3 (10.244.0.13:8080) is still an endpoint, its program ended"
  _kube
  rules <<'EOF'
-t nat -N KUBE-SVC-WEB
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-MARK-MASQ
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-SVC-WEB
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.33333 -p tcp -j DNAT --to-destination 10.244.0.11:8080
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.244.0.12:8080
-t nat -A KUBE-SVC-WEB -p tcp -j DNAT --to-destination 10.244.0.13:8080
EOF
  serve tcp pod1 8080
  serve tcp pod2 8080
  ask client tcp 198.51.100.1 30080 9
}

dns-stale-flow() {
  fault "one application's DNS queries from a fixed port get no answer after the DNS pod moved; new clients are served" "its connection entry still leads to the old pod 10.244.0.12; conntrack -D would help"
  _kube
  rules <<'EOF'
-t nat -A KUBE-SERVICES -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 10.244.0.12:53
EOF
  serve udp pod3 53
  serve udp pod2 53
  ask pod1 udp 10.96.0.10 53 3 port=40053
  sleep 1
  gw ip link set veth2 down
  gw iptables -t nat -R KUBE-SERVICES 2 -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 10.244.0.13:53
  ask pod1 udp 10.96.0.10 53 4
}

second-uplink-rp-filter() {
  fault "clients that come by the second provider time out" "rp_filter 1 on wan1: the way back to 203.0.113.0/24 leads over wan0"
  typical
  node far
  router isp1 isp2
  plug wan isp1 eth0 198.51.100.254/24
  link gw wan1 198.18.2.1/24 isp2 eth0 198.18.2.254/24
  switch net
  plug net isp1 eth1 203.0.113.1/24
  plug net isp2 eth1 203.0.113.2/24
  plug net far eth0 203.0.113.10/24
  default gw 198.51.100.254
  on far ip route add 198.18.2.0/24 via 203.0.113.2
  on far ip route add 198.51.100.0/24 via 203.0.113.1
  set_ gw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.wan1.rp_filter=1
  rules <<'EOF'
-t nat -A PREROUTING -i wan+ -p tcp --dport 25 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan+ -j MASQUERADE
EOF
  serve tcp server 25
  ask client tcp 198.51.100.1 25 4
  ask far tcp 198.51.100.1 25 2
  ask far tcp 198.18.2.1 25 2
}

small-port-range() {
  fault "some of the connections from the office to the application time out at busy times" "SNAT to 198.51.100.1:60000-60029: 30 ports, and each connection lasts 6 s at 8/s"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -p tcp -j SNAT --to-source 198.51.100.1:60000-60029
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 8 requests=4 gap=2
  sleep 5
}

legacy-left-behind() {
  fault "the web site shows timeouts since the move to nftables" "a DNAT rule in the legacy iptables tables still leads to the old server 192.168.1.99 and comes first"
  typical
  gw iptables-legacy -t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.99
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat + 10; iifname "wan0" tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 80
  serve tcp server 443
  ask client tcp 198.51.100.1 80 2
  ask client tcp 198.51.100.1 443 4
}

mtu-related-dropped() {
  fault "large pages stall for clients behind a tunnel, small ones work" "FORWARD accepts ESTABLISHED but not RELATED: the ICMP \"fragmentation needed\" of the router behind wan0 is dropped, so the server goes on with 1500"
  typical
  router tunnel
  node far
  plug wan tunnel eth0 198.51.100.254/24
  link tunnel tun0 203.0.113.1/24 far eth0 203.0.113.10/24
  on tunnel ip link set tun0 mtu 1300
  default gw 198.51.100.254
  default far 203.0.113.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 80 -j ACCEPT
-A FORWARD -i lan0 -o wan0 -m conntrack --ctstate NEW -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  ask far tcp 198.51.100.1 80 2 down=20000
  ask far tcp 198.51.100.1 80 2 down=200
  ask client tcp 198.51.100.1 80 2 down=20000
}

scanned() {
  healthy "a scanner tries ports that the firewall drops on purpose; the published services work"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  ruleset <<'EOF'
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname { lo, lan0 } accept
    icmp type echo-request accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname lan0 accept
    ct status dnat accept
  }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443
  serve tcp server 80
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 80 2
  ask scanner tcp 198.51.100.1 23 2
  ask scanner tcp 198.51.100.1 3389 2
  ask scanner udp 198.51.100.1 161 1
}

two-uplinks-done-right() {
  healthy "two providers: connections are marked by uplink and answers leave where they came in; the server is slow, health checks end by reset"
  typical
  node far
  router isp1 isp2
  plug wan isp1 eth0 198.51.100.254/24
  link gw wan1 198.18.2.1/24 isp2 eth0 198.18.2.254/24
  switch net
  plug net isp1 eth1 203.0.113.1/24
  plug net isp2 eth1 203.0.113.2/24
  plug net far eth0 203.0.113.10/24
  default gw 198.51.100.254
  on far ip route add 198.18.2.0/24 via 203.0.113.2
  on far ip route add 198.51.100.0/24 via 203.0.113.1
  gw ip route add default via 198.18.2.254 table 2
  gw ip rule add fwmark 2 lookup 2
  gw ip rule add from 198.18.2.1 lookup 2
  set_ gw net.ipv4.conf.all.rp_filter=2
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 198.18.2.1
EOF
  serve tcp server 443 delay=3
  serve tcp far 53
  ask far tcp 198.51.100.1 443 3 timeout=8
  ask far tcp 198.18.2.1 443 3 timeout=8
  ask far tcp 198.18.2.1 443 1 timeout=8 abort=1
  ask pc tcp 203.0.113.10 53 4 abort=1
}

snat-lost-address() {
  fault "half of the office has no internet" "192.168.1.21 is translated to 198.51.100.2, which was not put back on wan0 after the reboot: nobody answers ARP for it"
  typical
  node pc2
  plug lan pc2 eth0 192.168.1.21/24
  default pc2 192.168.1.1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -s 192.168.1.20 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o wan0 -s 192.168.1.21 -j SNAT --to-source 198.51.100.2
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 5
  ask pc2 tcp 198.51.100.10 443 5
}

renamed-interface() {
  fault "the published web server is refused" "the DNAT rule says -i eth0, since the upgrade the interface is called wan0: connections come to the gateway itself"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i eth0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A PREROUTING -i wan0 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.10:25
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp server 25
  ask client tcp 198.51.100.1 80 4
  ask client tcp 198.51.100.1 25 4
}

kube-not-masqueraded() {
  fault "pods cannot reach the database network 203.0.113.0/24, the rest of the world is reached" "ip-masq-agent: nonMasqueradeCIDRs contain 203.0.113.0/24, which has no route back to pods: they leave with 10.244.0.x"
  _kube
  router r
  node db
  plug wan r eth0 198.51.100.254/24
  link r eth1 203.0.113.1/24 db eth0 203.0.113.10/24
  default db 203.0.113.1
  default gw 198.51.100.254
  rules <<'EOF'
-t nat -N IP-MASQ
-t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ
-t nat -A IP-MASQ -d 10.0.0.0/8 -j RETURN
-t nat -A IP-MASQ -d 203.0.113.0/24 -j RETURN
-t nat -A IP-MASQ -j MASQUERADE --random-fully
EOF
  serve tcp db 5432
  serve tcp client 443
  ask pod1 tcp 203.0.113.10 5432 3
  ask pod2 tcp 198.51.100.10 443 5
}

zones-apart() {
  fault "guests have no internet" "raw PREROUTING puts what comes from lan0 in zone 2, answers come in by wan0 in zone 0: they are not translated back"
  typical
  rules <<'EOF'
-t raw -A PREROUTING -i lan0 -s 192.168.1.20 -j CT --zone 2
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 4
  ask server tcp 198.51.100.10 443 4
}

dns-notrack() {
  fault "the published DNS server does not answer" "raw PREROUTING: port 53 is NOTRACK since the DDoS, so DNAT does not see it: the gateway itself has no port 53"
  typical
  rules <<'EOF'
-t raw -A PREROUTING -p udp --dport 53 -j CT --notrack
-t nat -A PREROUTING -i wan0 -p udp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 53
  serve tcp server 53
  ask client udp 198.51.100.1 53 5
  ask client tcp 198.51.100.1 53 1
}

other-way-back() {
  fault "the partner's users time out at the web server, others do not" "the server has a route to 203.0.113.0/24 by another router: its answers do not pass the gateway"
  typical
  router r2
  node partner
  plug lan r2 eth0 192.168.1.2/24
  plug wan r2 eth1 198.51.100.2/24
  router r
  plug wan r eth0 198.51.100.254/24
  link r eth1 203.0.113.1/24 partner eth0 203.0.113.10/24
  default partner 203.0.113.1
  default gw 198.51.100.254
  default r2 198.51.100.254
  on server ip route add 203.0.113.0/24 via 192.168.1.2
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  ask partner tcp 198.51.100.1 443 2
}

ftp-passive() {
  fault "FTP logs in, listings time out" "no FTP helper: the server names 192.168.1.10 in its answer to PASV"
  typical
  default client 198.51.100.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 21 -j ACCEPT
-t nat -A PREROUTING -i wan0 -d 198.51.100.1 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp server 21
  ask client ftp 198.51.100.1 21 2
}

database-idle() {
  fault "the application's database connections are reset after a pause" "nf_conntrack_tcp_timeout_established is 4 s and tcp_loose 0, queries come every 7 s: later packets are invalid, so not translated, and the gateway itself answers them with RST"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=4 net.netfilter.nf_conntrack_tcp_loose=0
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 5432
  ask client tcp 198.51.100.1 5432 3 requests=5 gap=7
  ask client tcp 198.51.100.1 5432 1
}

connlimit() {
  fault "users behind the partner's NAT get resets at busy times" "connlimit: more than 8 connections of one source are rejected with tcp-reset"
  typical
  rules <<'EOF'
-A FORWARD -i wan0 -p tcp --syn --dport 443 -m connlimit --connlimit-above 8 --connlimit-mask 32 -j REJECT --reject-with tcp-reset
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  on client ip addr add 198.51.100.11/24 dev eth0
  serve tcp server 443
  ask client tcp 198.51.100.1 443 6 requests=3 gap=1
  ask client tcp 198.51.100.1 443 3 from=198.51.100.11
}

crowdsec-blocks-partner() {
  fault "the partner's office, 198.51.100.64/26, cannot open the site any more" "a blocklist set of nft, hook prerouting priority raw, contains the partner's network"
  typical
  node partner
  plug wan partner eth0 198.51.100.70/24
  ruleset <<'EOF'
table inet crowdsec {
  set blacklist { type ipv4_addr; flags interval; elements = { 203.0.113.0/25, 198.51.100.64/26, 192.0.2.0/24 } }
  chain prerouting { type filter hook prerouting priority raw; policy accept; ip saddr @blacklist drop; }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 6
  ask partner tcp 198.51.100.1 443 3
}

macvlan-child() {
  fault "the container's published port times out" "DNAT leads to a container on a macvlan of lan0: the parent cannot reach its own macvlan"
  typical
  node box
  gw ip link add mv0 link lan0 type macvlan mode bridge
  gw ip link set mv0 netns box name eth0
  address box eth0 192.168.1.50/24
  default box 192.168.1.1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8123 -j DNAT --to-destination 192.168.1.50
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp box 8123
  serve tcp server 80
  ask client tcp 198.51.100.1 8123 2
  ask client tcp 198.51.100.1 80 4
}

ips-stopped() {
  fault "nothing from the LAN reaches the internet, published services neither" "FORWARD sends new connections to NFQUEUE 0, and the IPS that reads it is not running"
  typical
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -j NFQUEUE --queue-num 0
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  serve udp client 53
  ask client tcp 198.51.100.1 80 3
  ask pc tcp 198.51.100.10 443 5
  ask pc udp 198.51.100.10 53 5
}

route-missing() {
  fault "one of two published services times out" "DNAT to 10.20.0.5 behind the inner router 192.168.1.2; gw lost the route and sends it out by wan0"
  typical
  router inner isp
  node app
  plug wan isp eth0 198.51.100.254/24
  plug lan inner eth0 192.168.1.2/24
  link inner eth1 10.20.0.1/24 app eth0 10.20.0.5/24
  default app 10.20.0.1
  default inner 192.168.1.1
  default gw 198.51.100.254
  on isp ip route add blackhole 10.0.0.0/8
  ruleset <<'EOF'
table ip nat {
  map services { type inet_service : ipv4_addr . inet_service; elements = { 443 : 192.168.1.10 . 443, 8443 : 10.20.0.5 . 443 } }
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 dnat ip addr . port to tcp dport map @services; }
  chain postrouting { type nat hook postrouting priority srcnat; ip saddr 192.168.1.0/24 oifname wan0 masquerade; }
}
EOF
  serve tcp server 443
  serve tcp app 443
  ask client tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.1 8443 3
}

syslog-one-way() {
  healthy "syslog and flow records over UDP behind DNAT, which nobody answers"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp -m multiport --dports 514,2055 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve tcp server 443
  ask client udp 198.51.100.1 514 10 answer=no
  ask client udp 198.51.100.1 2055 4 answer=no port=40000
  ask client tcp 198.51.100.1 443 4
}

routed-block() {
  healthy "the provider routes 203.0.113.8/29 to the gateway: SNAT and DNAT use its addresses, which no interface has"
  typical
  router isp
  node far
  plug wan isp eth0 198.51.100.254/24
  link isp eth1 198.18.0.1/24 far eth0 198.18.0.10/24
  default far 198.18.0.1
  default gw 198.51.100.254
  on isp ip route add 203.0.113.8/29 via 198.51.100.1
  gw ip route add blackhole 203.0.113.8/29
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -d 203.0.113.9 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 203.0.113.10-203.0.113.13 --persistent
EOF
  serve tcp server 443
  serve tcp far 443
  ask far tcp 203.0.113.9 443 5
  ask pc tcp 198.18.0.10 443 5
}

docker-busy() {
  healthy "a Docker host: published ports, containers that call out, one another and a published port of their own host; SSH brute force that a rule drops"
  _docker
  _publish 8080 172.17.0.2 80
  _publish 5000 172.17.0.3 5000
  rules <<'EOF'
-A INPUT -p tcp --dport 22 -m conntrack --ctstate NEW -m recent --name ssh --set
-A INPUT -p tcp --dport 22 -m conntrack --ctstate NEW -m recent --name ssh --update --seconds 60 --hitcount 5 -j DROP
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
EOF
  node bot
  plug wan bot eth0 198.51.100.66/24
  serve tcp c1 80
  serve tcp c2 5000
  serve tcp gw 22
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 6 requests=5 gap=1
  ask client tcp 198.51.100.1 5000 2 down=300000
  ask c1 tcp 172.17.0.3 5000 4
  ask c2 tcp 198.51.100.10 443 4
  ask gw tcp 198.51.100.1 8080 1
  ask bot tcp 198.51.100.1 22 1
}

masqueraded-by-mark() {
  fault "the backup line does not work for the servers that are to use it: all their connections time out" "marked traffic of the server leaves by wan1, but SNAT without -o gives it wan0's address: the second provider drops it"
  typical
  router isp2
  node far
  link gw wan1 198.18.2.1/24 isp2 eth0 198.18.2.254/24
  link isp2 eth1 203.0.113.2/24 far eth0 203.0.113.10/24
  default far 203.0.113.2
  on isp2 iptables -A FORWARD -i eth0 ! -s 198.18.2.0/24 -j DROP
  gw ip route add default via 198.18.2.254 table 2
  gw ip rule add fwmark 2 lookup 2
  rules <<'EOF'
-t mangle -A PREROUTING -i lan0 -s 192.168.1.10 -j MARK --set-mark 2
-t nat -A POSTROUTING -s 192.168.1.0/24 ! -d 192.168.1.0/24 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp far 443
  serve tcp client 443
  ask server tcp 203.0.113.10 443 4
  ask pc tcp 198.51.100.10 443 4
}

neighbour-discovery-filtered() {
  fault "the web site times out over IPv6, over IPv4 it works" "ip6tables INPUT drops all ICMPv6, neighbour discovery too: gw does not learn the server's address"
  typical 6
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination [2001:db8:2::10]
-6 -A INPUT -i lan0 -p icmpv6 -j DROP
-6 -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
EOF
  serve tcp server 443 bind=
  ask client tcp 198.51.100.1 443 4
  ask client tcp 2001:db8:1::1 443 4
}

old-mac() {
  fault "one of three published services times out since the server got a new network card" "a permanent neighbour entry has the old MAC address of 192.168.1.10"
  typical
  gw ip neigh add 192.168.1.10 lladdr 02:00:00:12:34:56 dev lan0 nud permanent
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.20
-t nat -A PREROUTING -i wan0 -p tcp --dport 993 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp pc 25
  serve tcp pc 993
  ask client tcp 198.51.100.1 443 3
  ask client tcp 198.51.100.1 25 3
  ask client tcp 198.51.100.1 993 3
}

spoof-guard() {
  fault "a container that was re-created with another MAC address has no network; its published port times out" "nft table bridge: frames of 172.17.0.3 are accepted with the old MAC address only"
  _docker
  _publish 8080 172.17.0.2 80
  _publish 5000 172.17.0.3 5000
  ruleset <<'EOF'
table bridge guard {
  chain prerouting {
    type filter hook prerouting priority 0;
    iifname "veth2" ether saddr != 02:42:ac:11:00:03 ether type { ip, arp } drop
  }
}
EOF
  serve tcp c1 80
  serve tcp c2 5000
  serve udp client 53
  ask client tcp 198.51.100.1 8080 4
  ask client tcp 198.51.100.1 5000 2
  ask c2 udp 198.51.100.10 53 2
}

libvirt-rejects() {
  fault "the port forwarded to the virtual machine is refused" "libvirt's chain LIBVIRT_FWI rejects new connections to virbr0, before the accept rule at the end"
  router gw
  node client vm
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  gw ip link add virbr0 type bridge
  address gw virbr0 192.168.122.1/24
  link gw vnet0 - vm eth0 192.168.122.20/24
  gw ip link set vnet0 master virbr0
  default vm 192.168.122.1
  rules <<'EOF'
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A FORWARD -d 192.168.122.20 -p tcp --dport 3389 -j ACCEPT
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-t nat -A PREROUTING -i wan0 -p tcp --dport 3389 -j DNAT --to-destination 192.168.122.20
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
EOF
  serve tcp vm 3389
  serve tcp client 443
  ask client tcp 198.51.100.1 3389 2
  ask vm tcp 198.51.100.10 443 5
}

cluster-ip-from-the-node() {
  fault "programs of the node itself cannot reach the cluster address 10.96.0.20, pods can" "only PREROUTING jumps to KUBE-SERVICES, the jump of OUTPUT was lost: the node sends it to its default route"
  _kube
  router isp
  plug wan isp eth0 198.51.100.254/24
  default gw 198.51.100.254
  on isp ip route add blackhole 10.0.0.0/8
  gw iptables -t nat -D OUTPUT 1
  rules <<'EOF'
-t nat -A KUBE-SERVICES -d 10.96.0.20 -p tcp --dport 80 -j DNAT --to-destination 10.244.0.12:8080
-t nat -A POSTROUTING -s 10.244.0.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp pod2 8080
  ask pod1 tcp 10.96.0.20 80 4
  ask gw tcp 10.96.0.20 80 2
}

one-interface-forwards-not() {
  fault "the VPN network 10.8.0.0/24 reaches neither servers nor the internet" "net.ipv4.conf.vpn0.forwarding is 0"
  typical
  node road
  link gw vpn0 10.8.0.1/24 road eth0 10.8.0.2/24
  default road 10.8.0.1
  set_ gw net.ipv4.conf.vpn0.forwarding=0
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 445
  serve tcp client 443
  ask road tcp 192.168.1.10 445 2
  ask road tcp 198.51.100.10 443 2
  ask pc tcp 198.51.100.10 443 5
}

two-phones() {
  fault "the second SIP phone cannot register" "SNAT to the fixed port 198.51.100.1:5060 for both phones: towards the same server there is one such port"
  typical
  node phone1 phone2
  plug lan phone1 eth0 192.168.1.31/24
  plug lan phone2 eth0 192.168.1.32/24
  default phone1 192.168.1.1
  default phone2 192.168.1.1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -p udp --sport 5060 -j SNAT --to-source 198.51.100.1:5060
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp client 5060
  serve tcp client 443
  ask phone1 udp 198.51.100.10 5060 2 port=5060
  ask phone2 udp 198.51.100.10 5060 2 port=5060 after=1.5
  ask pc tcp 198.51.100.10 443 4
}

phone-before-the-rules() {
  fault "a SIP phone does not register since the gateway was restarted; phones that were switched on later do" "its flow began before the masquerade rule was loaded: the entry has no translation and is kept by the phone's packets"
  typical
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
EOF
  serve udp client 5060
  serve tcp client 443
  ask pc udp 198.51.100.10 5060 2 port=5060
  sleep 2
  gw iptables -t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j MASQUERADE
  ask server udp 198.51.100.10 5060 2 port=5060
  ask server tcp 198.51.100.10 443 4
}

fragments-lost() {
  fault "large DNS answers (EDNS, 3000 bytes) never arrive, small ones do" "fragments are dropped on the gateway: net.ipv4.ipfrag_high_thresh is 1"
  typical
  set_ gw net.ipv4.ipfrag_low_thresh=1
  set_ gw net.ipv4.ipfrag_high_thresh=1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp client 53
  ask pc udp 198.51.100.10 53 5 down=120
  ask pc udp 198.51.100.10 53 5 down=3000
}

forgotten-shaper() {
  fault "the internet is very slow, half of all requests time out" "a test's tbf of 256 kbit/s with a queue of 4 kB is still on lan0"
  typical
  gw tc qdisc add dev lan0 root tbf rate 256kbit burst 3000 limit 4000
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 6 down=15000
  ask server tcp 198.51.100.10 443 3 down=100
}

frozen-proxy() {
  fault "the web site hangs: connections open, no answer comes" "the proxy on the gateway that port 80 is redirected to is stopped (SIGSTOP): its sockets fill up"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j REDIRECT --to-ports 3128
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 3128
  serve tcp client 443
  sleep 0.6
  gw pkill -STOP -f 'serve tcp 3128'
  ask client tcp 198.51.100.1 80 5
  ask pc tcp 198.51.100.10 443 4
}

bridge-and-phys() {
  healthy "a bridge with a port that carries nothing, a macvlan, IPv6 with NAT66 and neighbours that come and go; pings"
  typical 6
  node box
  gw ip link add mv0 link lan0 type macvlan mode bridge
  gw ip link set mv0 netns box name eth0
  address box eth0 192.168.1.50/24
  default box 192.168.1.1
  gw ip link add br-empty up type bridge
  address gw br-empty 172.18.0.1/16
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination [2001:db8:2::10]
-6 -t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 bind=
  serve tcp client 80 bind=
  ask client tcp 2001:db8:1::1 443 5
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 2001:db8:1::10 80 5
  ask box tcp 192.168.1.10 443 1
  ask pc ping 2001:db8:1::10 - 2
}

websockets() {
  healthy "web sockets that are quiet for 8 s, requests that take 4 s, and clients that hang up"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 443,8443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp server 8443 delay=4
  ask client tcp 198.51.100.1 443 3 requests=6 gap=8
  ask client tcp 198.51.100.1 8443 5 timeout=10
  ask client tcp 198.51.100.1 8443 2 timeout=1
}

local-ports-used-up() {
  fault "the proxy on the gateway answers 503 at busy times: \"cannot assign requested address\"" "net.ipv4.ip_local_port_range is 40000-40019: its connections to the backend use all of them"
  typical
  set_ gw net.ipv4.ip_local_port_range='40000 40019'
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  serve tcp pc 443
  ask gw tcp 192.168.1.10 8080 6 requests=3 gap=3
  ask client tcp 198.51.100.1 443 4
  sleep 2
}

ipsec-policy-left() {
  fault "the branch office network 203.0.113.0/24 is not reached any more, the internet is" "an xfrm policy of the old IPsec tunnel is still there, without an SA"
  typical
  router r
  node branch
  plug wan r eth0 198.51.100.254/24
  link r eth1 203.0.113.1/24 branch eth0 203.0.113.10/24
  default branch 203.0.113.1
  default gw 198.51.100.254
  gw ip xfrm policy add dir out src 0.0.0.0/0 dst 203.0.113.0/24 tmpl src 198.51.100.1 dst 198.51.100.254 proto esp mode tunnel
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp branch 445
  serve tcp client 443
  ask pc tcp 203.0.113.10 445 3
  ask pc tcp 198.51.100.10 443 5
}

second-public-address() {
  fault "the mail server's public address 198.51.100.7 cannot be reached" "DNAT is for 198.51.100.7, which was not put on wan0 again: nobody answers ARP for it, so nothing arrives"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.7 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp pc 25
  ask client tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.7 25 3
}

voice-limited() {
  fault "calls are choppy: a third of the voice packets is lost" "nft: UDP 10000-20000 is limited to 30 packets per second, a call has 50"
  typical
  ruleset <<'EOF'
table inet fw {
  chain forward {
    type filter hook forward priority filter; policy accept;
    udp dport 10000-20000 limit rate over 30/second burst 10 packets drop
  }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname wan0 udp dport 10000-20000 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve udp server 10002
  serve tcp client 443
  ask client udp 198.51.100.1 10002 50 port=36000 up=172 down=172
  ask pc tcp 198.51.100.10 443 2
}

own-traffic-marked() {
  fault "updates on the gateway itself time out, the LAN is fine" "mangle OUTPUT marks port 443 for the second provider: rerouted after the source was chosen, it leaves by wan1 with wan0's address"
  typical
  router isp2
  node far
  link gw wan1 198.18.2.1/24 isp2 eth0 198.18.2.254/24
  link isp2 eth1 203.0.113.2/24 far eth0 203.0.113.10/24
  default far 203.0.113.2
  on isp2 iptables -A FORWARD -i eth0 ! -s 198.18.2.0/24 -j DROP
  default gw 198.51.100.10
  gw ip route add default via 198.18.2.254 table 2
  gw ip rule add fwmark 2 lookup 2
  set_ gw net.ipv4.conf.all.rp_filter=2
  rules <<'EOF'
-t mangle -A PREROUTING -i lan0 -p tcp --dport 443 -j MARK --set-mark 2
-t mangle -A OUTPUT -p tcp --dport 443 -j MARK --set-mark 2
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -s 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp far 443
  ask pc tcp 203.0.113.10 443 4
  ask gw tcp 203.0.113.10 443 2
}

ttl-one() {
  fault "since a copied \"hide tethering\" rule the LAN has no internet, the gateway itself has" "mangle PREROUTING sets the TTL of what comes from lan0 to 1: it is dropped as expired when forwarded"
  typical
  rules <<'EOF'
-t mangle -A PREROUTING -i lan0 -j TTL --ttl-set 1
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  serve udp client 53
  ask pc tcp 198.51.100.10 443 4
  ask pc udp 198.51.100.10 53 4
  ask gw udp 198.51.100.10 53 2
}

ula-untranslated() {
  fault "web pages open late: everything is tried over IPv6 first, and that times out" "the LAN has private IPv6 addresses, fd00::/64, and masquerade is for IPv4 only"
  typical 6
  on pc ip addr del 2001:db8:2::20/64 dev eth0
  on pc ip addr add fd00:0:0:1::20/64 dev eth0
  gw ip addr add fd00:0:0:1::1/64 dev lan0
  on pc ip route replace default via fd00:0:0:1::1
  on client ip route del default via 2001:db8:1::1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443 bind=
  ask pc tcp 2001:db8:1::10 443 4
  ask pc tcp 198.51.100.10 443 4
}

shadowed-rule() {
  fault "the mail web interface, port 8443, is refused" "an earlier rule for ports 8000:8999 leads it to 192.168.1.10, which has no 8443; the one for 192.168.1.20 is never reached"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8000:8999 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  serve tcp pc 8443
  ask client tcp 198.51.100.1 8080 5
  ask client tcp 198.51.100.1 8443 2
}

own-icmp-dropped() {
  fault "uploads from the office stall, small requests work" "wan0 has MTU 1400, and OUTPUT drops all ICMP: the PC is not told \"fragmentation needed\""
  typical
  gw ip link set wan0 mtu 1400
  rules <<'EOF'
-A OUTPUT -p icmp -j DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 3 up=100
  ask pc tcp 198.51.100.10 443 2 up=30000
}

synproxy() {
  healthy "SYNPROXY protects the own web server and one behind DNAT"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_loose=0 net.ipv4.tcp_syncookies=1 net.ipv4.tcp_timestamps=1
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -p tcp --dport 80 --syn -j CT --notrack
-A INPUT -i wan0 -p tcp --dport 80 -m conntrack --ctstate INVALID,UNTRACKED -j SYNPROXY --sack-perm --timestamp --wscale 7 --mss 1460
-A INPUT -m conntrack --ctstate INVALID -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 80
  serve tcp server 443
  ask client tcp 198.51.100.1 80 5
  ask client tcp 198.51.100.1 443 5
}

lan-noise() {
  healthy "a home router: hairpin, broadcasts to ports that nobody has, ident is rejected, an IPS queue that is bypassed"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -i lan0 -p udp --dport 53 -j ACCEPT
-A INPUT -p tcp --dport 113 -j REJECT --reject-with tcp-reset
-A FORWARD -j NFQUEUE --queue-num 0 --queue-bypass
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 192.168.1.10 -p tcp --dport 443 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve udp gw 53
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 198.51.100.1 443 4
  ask pc udp 192.168.1.1 53 4
  ask client tcp 198.51.100.1 113 1
  ask pc udp 239.255.255.250 1900 3 answer=no
  on pc ip route add 239.0.0.0/8 dev eth0
}

hashed-backends() {
  healthy "an nft load balancer spreads clients by hash over three servers, 50 connections per second, half of them ended by reset; one server is drained"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  ip -n server addr add 192.168.1.12/24 dev eth0
  local i
  for i in {11..20}; do on client ip addr add "198.51.100.$i/24" dev eth0; done
  ruleset <<'EOF'
table ip lb {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    iifname wan0 tcp dport { 80, 443 } dnat to jhash ip saddr mod 3 map { 0 : 192.168.1.10, 1 : 192.168.1.11, 2 : 192.168.1.11 }
  }
  chain postrouting { type nat hook postrouting priority srcnat; oifname lan0 ct status dnat masquerade; }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 25 from=198.51.100.11
  ask client tcp 198.51.100.1 443 25 from=198.51.100.12 abort=1
  ask client tcp 198.51.100.1 443 3 from=198.51.100.17
}

kube-quiet() {
  healthy "a Kubernetes node: session affinity, a service without endpoints that nobody asks, UDP and TCP DNS, node ports from pods and from outside, a pod that is asked on a closed port once in a while by a probe"
  _kube
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A FORWARD -d 10.96.0.99 -p tcp --dport 443 -j REJECT --reject-with icmp-port-unreachable
-t nat -N KUBE-SVC-DNS
-t nat -A KUBE-SERVICES -d 10.96.0.10 -p udp --dport 53 -j KUBE-SVC-DNS
-t nat -A KUBE-SERVICES -d 10.96.0.10 -p tcp --dport 53 -j KUBE-SVC-DNS
-t nat -A KUBE-SVC-DNS -m recent --name dns1 --rcheck --seconds 10800 --reap --rsource -j DNAT --to-destination 10.244.0.11
-t nat -A KUBE-SVC-DNS -m statistic --mode random --probability 0.5 -m recent --name dns1 --set --rsource -j DNAT --to-destination 10.244.0.11
-t nat -A KUBE-SVC-DNS -j DNAT --to-destination 10.244.0.12
-t nat -A KUBE-NODEPORTS -p tcp --dport 30053 -j KUBE-MARK-MASQ
-t nat -A KUBE-NODEPORTS -p tcp --dport 30053 -j DNAT --to-destination 10.244.0.12:53
-t nat -A POSTROUTING -s 10.244.0.0/24 ! -d 10.0.0.0/8 -j MASQUERADE
EOF
  local i
  for i in 1 2; do serve udp "pod$i" 53 && serve tcp "pod$i" 53; done
  default gw 198.51.100.10
  serve tcp client 443
  ask pod3 udp 10.96.0.10 53 10
  ask pod3 tcp 10.96.0.10 53 3
  ask client tcp 198.51.100.1 30053 4
  ask gw tcp 10.96.0.10 53 2
  ask pod3 tcp 198.51.100.10 443 4
  ask gw tcp 10.244.0.13 8080 0.5
}

overlay() {
  healthy "DNAT to a container on another node, over VXLAN with MTU 1450; the MSS is clamped, large answers, short UDP timeouts, a blocklist that nobody meets"
  router gw node2
  node client box
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  link gw eth1 198.18.0.1/24 node2 eth1 198.18.0.2/24
  local n
  for n in 1 2; do
    set -- gw node2
    ip -n "${!n}" link add flannel type vxlan id 1 dev eth1 dstport 8472 remote "198.18.0.$((3 - n))" local "198.18.0.$n"
    address "${!n}" flannel "10.244.$n.1/16"
  done
  link node2 cni0 10.245.0.1/24 box eth0 10.245.0.9/24
  default box 10.245.0.1
  default node2 10.244.1.1
  gw ip route add 10.245.0.0/24 via 10.244.2.1
  gw ipset create blocked hash:net
  gw ipset add blocked 203.0.113.0/24
  set_ gw net.netfilter.nf_conntrack_udp_timeout=5
  rules <<'EOF'
-t raw -A PREROUTING -m set --match-set blocked src -j DROP
-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 10.245.0.9
-t nat -A PREROUTING -i wan0 -p udp --dport 53 -j DNAT --to-destination 10.245.0.9
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp box 80
  serve udp box 53
  ask client tcp 198.51.100.1 80 4 down=100000
  ask client tcp 198.51.100.1 80 2 up=30000
  ask client udp 198.51.100.1 53 8
}
