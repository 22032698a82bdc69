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
