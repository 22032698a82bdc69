# shellcheck shell=bash
# Round 11: offices, Docker and Kubernetes hosts, lines to two providers, as tickets describe them.

# gw wan0 198.51.100.2 – 198.51.100.1 isp 203.0.113.1 – web 203.0.113.10; LAN as of typical
with_isp() {
  router gw isp
  node web
  link gw wan0 198.51.100.2/24 isp cust0 198.51.100.1/24
  link isp core0 203.0.113.1/24 web eth0 203.0.113.10/24
  default gw 198.51.100.1
  default web 203.0.113.1
  with_lan
}
with_lan() {
  node server pc
  switch lan
  plug lan gw lan0 192.168.1.1/24
  plug lan server eth0 192.168.1.10/24
  plug lan pc eth0 192.168.1.20/24
  default server 192.168.1.1
  default pc 192.168.1.1
}
# Two providers, each of which takes its own addresses only; no default route yet.
with_two_isps() {
  router gw isp1 isp2
  node web
  switch core
  link gw wan0 198.51.100.2/24 isp1 cust0 198.51.100.1/24
  link gw wan1 192.0.2.2/24 isp2 cust0 192.0.2.1/24
  plug core isp1 core0 203.0.113.1/24
  plug core isp2 core0 203.0.113.2/24
  plug core web eth0 203.0.113.10/24
  ip -n web route add 198.51.100.0/24 via 203.0.113.1
  ip -n web route add 192.0.2.0/24 via 203.0.113.2
  on isp1 iptables -A FORWARD -i cust0 ! -s 198.51.100.0/24 -j DROP
  on isp2 iptables -A FORWARD -i cust0 ! -s 192.0.2.0/24 -j DROP
  with_lan
}
# A host with its uplink only.
with_host() {
  router gw
  node client
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
}
# BRIDGE ADDR [NAME ADDR]…: a bridge of gw's own, with containers
with_bridge() {
  local bridge=$1 addr=$2
  shift 2
  gw ip link add "$bridge" up type bridge
  gw ip addr add "$addr" dev "$bridge"
  while [ $# -gt 0 ]; do
    node "$1"
    link gw "veth-$1" - "$1" eth0 "$2"
    gw ip link set "veth-$1" master "$bridge"
    default "$1" "${addr%/*}"
    shift 2
  done
}
# What Docker writes for one container with port 8080 published.
docker_rules() {
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
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A DOCKER -i docker0 -j RETURN
-t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
EOF
}

# ---- faults

guest-wifi-offline() {
  fault "phones in the guest network reach nothing on the internet; the office network does" \
    "MASQUERADE names 192.168.1.0/24 only: the guests' 192.168.50.0/24 leaves wan0 with private sources, which nobody can answer"
  with_isp
  node phone
  link gw guest0 192.168.50.1/24 phone wlan0 192.168.50.23/24
  default phone 192.168.50.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i guest0 -o lan0 -j REJECT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i guest0 -o wan0 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp web 443
  ask phone tcp 203.0.113.10 443 6
  ask pc tcp 203.0.113.10 443 3
}

lxd-containers-offline() {
  fault "LXD containers have no internet since Docker was installed; the Docker container works" \
    "Docker's iptables -P FORWARD DROP drops what comes from and to lxdbr0: LXD's own accept in another table does not help"
  with_host
  with_bridge docker0 172.17.0.1/16 app 172.17.0.2/16
  with_bridge lxdbr0 10.158.3.1/24 c1 10.158.3.71/24 c2 10.158.3.72/24
  docker_rules
  ruleset <<'EOF'
table inet lxd {
  chain pstrt.lxdbr0 { type nat hook postrouting priority srcnat; ip saddr 10.158.3.0/24 ip daddr != 10.158.3.0/24 masquerade; }
  chain fwd.lxdbr0 { type filter hook forward priority filter; ip version 4 oifname "lxdbr0" accept; ip version 4 iifname "lxdbr0" accept; }
}
EOF
  serve tcp client 443
  serve tcp app 80
  ask c1 tcp 198.51.100.10 443 4
  ask c2 tcp 198.51.100.10 443 4
  ask client tcp 198.51.100.1 8080 3
}

office-offline-after-hardening() {
  fault "nobody in the office reaches the internet, and the web server is not reached from outside" \
    "a hardening profile set net.ipv4.ip_forward=0 on gw: nothing is forwarded in either direction"
  with_isp
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  set_ gw net.ipv4.ip_forward=0 net.ipv4.conf.all.send_redirects=0
  serve tcp web 443
  serve tcp server 80
  ask pc tcp 203.0.113.10 443 5
  ask web tcp 198.51.100.2 80 5
}

second-line-forward-dead() {
  fault "the web server is reached by the address of the first line, not by that of the second" \
    "strict rp_filter on wan1: the route back to the clients leads by wan0, so what comes in by wan1 is dropped before any rule for forwarding"
  with_two_isps
  gw ip route add default via 198.51.100.1 metric 100
  gw ip route add default via 192.0.2.1 metric 200
  gw ip route add default via 192.0.2.1 table 102
  gw ip rule add fwmark 2 lookup 102
  set_ gw net.ipv4.conf.{all,wan0,wan1,lan0}.rp_filter=1
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan+ -j MASQUERADE
EOF
  serve tcp server 80
  ask web tcp 192.0.2.2 80 6
  ask web tcp 198.51.100.2 80 3
}

uploads-hang() {
  fault "large uploads hang, small requests and downloads work" \
    "the provider's path takes 1400 bytes and says so, but FORWARD accepts ESTABLISHED without RELATED: the ICMP 'fragmentation needed' is dropped on its way to the PC"
  with_isp
  ip -n isp route replace 203.0.113.0/24 dev core0 mtu 1400
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -m conntrack --ctstate NEW -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp web 443
  ask pc tcp 203.0.113.10 443 4 up=40000
  ask server tcp 203.0.113.10 443 3
}

intranet-by-public-name() {
  fault "from the office the shop's public name does not answer; from outside it does" \
    "hairpin: DNAT without SNAT for clients of the same network, so the server answers the PC directly from 192.168.1.10"
  typical
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; ip daddr 198.51.100.1 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 443
  ask pc tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 443 4
}

branch-database-unreachable() {
  fault "the database in the branch office does not answer; the internet works" \
    "MASQUERADE stands before the exception for the tunnel: requests get gw's tunnel address as source, which the branch's firewall drops"
  typical
  router branch
  node db
  link gw tun0 10.255.0.1/30 branch tun0 10.255.0.2/30
  link branch lan0 10.20.0.1/24 db eth0 10.20.0.10/24
  default db 10.20.0.1
  ip -n gw route add 10.20.0.0/24 via 10.255.0.2
  ip -n branch route add 192.168.1.0/24 via 10.255.0.1
  on branch iptables -A FORWARD -i tun0 ! -s 192.168.1.0/24 -j DROP
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
EOF
  serve tcp db 5432
  serve tcp client 443
  ask pc tcp 10.20.0.10 5432 8
  ask pc tcp 198.51.100.10 443 2
}

reports-refused() {
  fault "the reporting page is refused at once" \
    "DNAT leads to port 8081 of the server, which listens on 8080 since its update: the server resets the connections"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:8081
-t nat -A PREROUTING -i wan0 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.10:25
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  serve tcp server 25
  ask client tcp 198.51.100.1 8443 30
  ask client tcp 198.51.100.1 25 2
}

camera-not-reachable() {
  fault "the camera is not reached from outside any more" \
    "DNAT leads to 192.168.1.44, but by DHCP the camera has 192.168.1.144 now: nobody answers gw's ARP"
  typical
  node camera
  plug lan camera eth0 192.168.1.144/24
  default camera 192.168.1.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -m conntrack --ctstate DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 8554 -j DNAT --to-destination 192.168.1.44:554
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp camera 554
  serve tcp client 443
  ask client tcp 198.51.100.1 8554 2
  ask pc tcp 198.51.100.10 443 3
}

nas-from-outside() {
  fault "the NAS is not reached from outside, the web server is" \
    "the NAS has another router (192.168.1.254) as its default gateway: its answers do not come back by gw"
  typical
  router oldrouter
  node nas
  plug lan nas eth0 192.168.1.30/24
  plug lan oldrouter lan0 192.168.1.254/24
  plug wan oldrouter wan0 198.51.100.77/24
  default nas 192.168.1.254
  on oldrouter iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP
  on oldrouter iptables -t nat -A POSTROUTING -o wan0 -j MASQUERADE
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 5001 -j DNAT --to-destination 192.168.1.30:5001
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp nas 5001
  serve tcp server 80
  ask client tcp 198.51.100.1 5001 4
  ask client tcp 198.51.100.1 80 4
}

shop-times-out() {
  fault "the shop times out for everybody outside" \
    "FORWARD accepts the public address and port 443, but sees what DNAT made of it (192.168.1.10:8443), which its policy drops"
  typical
  rules <<'EOF'
-P INPUT DROP
-P FORWARD DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 198.51.100.1 -p tcp --dport 443 -j ACCEPT
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443
  serve tcp client 80
  ask client tcp 198.51.100.1 443 10
  ask pc tcp 198.51.100.10 80 2
}

erp-hangs-after-login() {
  fault "the ERP system at headquarters connects, then hangs; the internet works" \
    "asymmetric: requests go by gw, answers come from the MPLS router straight to the PC; gw saw no SYN-ACK, takes the rest for INVALID and drops it"
  typical
  router mpls
  node erp
  plug lan mpls lan0 192.168.1.254/24
  link mpls hq0 10.9.0.1/24 erp eth0 10.9.0.10/24
  default erp 10.9.0.1
  ip -n gw route add 10.9.0.0/24 via 192.168.1.254
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp erp 3200
  serve tcp client 443
  ask pc tcp 10.9.0.10 3200 5
  ask pc tcp 198.51.100.10 443 3
}

database-sessions-die-idle() {
  fault "database sessions that were idle for some seconds hang with the next query; new ones work" \
    "nf_conntrack_tcp_timeout_established=5 and tcp_loose=0: gw forgets idle connections, and what comes afterwards is INVALID, not translated and dropped"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=5 net.netfilter.nf_conntrack_tcp_loose=0
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 5432
  ask pc tcp 198.51.100.10 5432 3 requests=2 gap=8
  ask server tcp 198.51.100.10 5432 2 requests=2 gap=7
  sleep 9 # until the first sessions have been idle
}

signups-time-out() {
  fault "most visitors wait or time out at any busy hour; a few get through" \
    "the SYN flood protection accepts 5 new connections per second in all and drops the others; 40 come"
  typical
  rules <<'EOF'
-N syn_flood
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp --syn -j syn_flood
-A syn_flood -m limit --limit 5/s --limit-burst 10 -j RETURN
-A syn_flood -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 40
}

app-users-of-one-carrier() {
  fault "most connections of the subscribers to the messenger time out" \
    "SNAT has 32 ports for all of them (20000-20031): they are in use, and new connections to the same server are dropped"
  with_isp
  ruleset <<'EOF'
table ip nat {
  chain post {
    type nat hook postrouting priority srcnat
    oifname "wan0" ip saddr 192.168.1.0/24 ip protocol { tcp, udp } snat to 198.51.100.2:20000-20031
  }
}
EOF
  serve tcp web 5222 delay=3
  ask pc tcp 203.0.113.10 5222 20 timeout=4
  ask server tcp 203.0.113.10 5222 15 timeout=4
}

site-down-by-ipv6() {
  fault "the site is not reached by IPv6, by IPv4 it is" \
    "ip6tables INPUT drops ICMPv6: gw does not take part in neighbour discovery, and nobody outside learns its MAC address"
  typical 6
  rules <<'EOF'
-6 -P INPUT DROP
-6 -A INPUT -i lo -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A INPUT -p tcp --dport 22 -j ACCEPT
-6 -t nat -A PREROUTING -d 2001:db8:1::1 -p tcp --dport 443 -j DNAT --to-destination [2001:db8:2::10]:443
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 bind=
  ask client tcp 2001:db8:1::1 443 6
  ask client tcp 198.51.100.1 443 3
}

mail-server-on-second-address() {
  fault "the mail server's own public address does not answer, the first one does" \
    "DNAT names 198.51.100.5, which gw does not have on wan0 (lost with the reboot): nobody answers ARP for it"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.5 -p tcp -m multiport --dports 25,465,587,993 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 25
  serve tcp server 80
  ask client tcp 198.51.100.5 25 5
  ask client tcp 198.51.100.1 80 5
}

pods-cannot-use-service() {
  fault "pods time out when they use the service of a pod of the same node; from outside the node port works" \
    "bridge-nf-call-iptables=0: the answer crosses the bridge cni0 from pod to pod and is not translated back to the cluster address"
  with_host
  with_bridge cni0 10.244.1.1/24 frontend 10.244.1.5/24 backend 10.244.1.6/24
  set_ gw net.bridge.bridge-nf-call-iptables=0
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-SVC-4N57
-t nat -N KUBE-SEP-XZ2A
-t nat -N KUBE-POSTROUTING
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-SERVICES -d 10.96.0.20/32 -p tcp --dport 80 -j KUBE-SVC-4N57
-t nat -A KUBE-SERVICES -p tcp --dport 30080 -m addrtype --dst-type LOCAL -j KUBE-SVC-4N57
-t nat -A KUBE-SVC-4N57 -j KUBE-SEP-XZ2A
-t nat -A KUBE-SEP-XZ2A -s 10.244.1.6/32 -j MARK --or-mark 0x4000
-t nat -A KUBE-SEP-XZ2A -p tcp -j DNAT --to-destination 10.244.1.6:8080
-t nat -A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE
-t nat -A POSTROUTING -s 10.244.1.0/24 ! -d 10.244.0.0/16 -j MASQUERADE
EOF
  serve tcp backend 8080
  ask frontend tcp 10.96.0.20 80 8
  ask client tcp 198.51.100.1 30080 3
}

metrics-lost-since-redeploy() {
  fault "the agents' metrics (UDP) do not arrive since the collector was redeployed; new agents work" \
    "their flows are still in the connection table with the old collector 192.168.1.11 as DNAT target: the new rule does not apply to them, and .11 is gone"
  typical
  node old
  plug lan old eth0 192.168.1.11/24
  default old 192.168.1.1
  rules <<<'-t nat -A PREROUTING -i wan0 -p udp --dport 8125 -j DNAT --to-destination 192.168.1.11:8125'
  serve udp old 8125
  serve udp server 8125
  for port in 40001 40002 40003; do ask client udp 198.51.100.1 8125 4 port=$port; done
  sleep 2
  ip -n old link set eth0 down
  rules <<'EOF'
-t nat -D PREROUTING -i wan0 -p udp --dport 8125 -j DNAT --to-destination 192.168.1.11:8125
-t nat -A PREROUTING -i wan0 -p udp --dport 8125 -j DNAT --to-destination 192.168.1.10:8125
EOF
  ask client udp 198.51.100.1 8125 1
}

partner-application-gone() {
  fault "the partner's application behind the VPN is not reached since a Compose project was started on gw" \
    "the project's network br-4f2a9c 172.18.0.0/16 covers the partner's 172.18.0.0/16: the connected route wins over that of the tunnel"
  typical
  router partner
  node app
  link gw tun0 10.255.0.1/30 partner tun0 10.255.0.2/30
  link partner lan0 172.18.5.1/24 app eth0 172.18.5.10/24
  default app 172.18.5.1
  gw ip route add 172.18.0.0/16 via 10.255.0.2 dev tun0 metric 50
  with_bridge br-4f2a9c 172.18.0.1/16 redis 172.18.0.2/16
  rules <<'EOF'
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-4f2a9c -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.1.0/24 -o tun0 -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp app 8443
  serve tcp client 443
  ask pc tcp 172.18.5.10 8443 5
  ask pc tcp 198.51.100.10 443 3
}

streaming-box-offline() {
  fault "the streaming box has no internet, all others have" \
    "a rule sends 192.168.1.20 into the VPN (table 200, tun0), whose provider forwards nothing: it leaves tun0, translated, and no answer comes"
  with_isp
  router vpn
  link gw tun0 10.8.0.6/24 vpn tun0 10.8.0.1/24
  gw ip route add default via 10.8.0.1 dev tun0 table 200
  gw ip rule add from 192.168.1.20 lookup 200 priority 1000
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o tun0 -j MASQUERADE
EOF
  ip -n vpn route add blackhole default
  serve tcp web 443
  ask pc tcp 203.0.113.10 443 4
  ask server tcp 203.0.113.10 443 6
}

every-other-page-fails() {
  fault "about every other connection to the internet times out" \
    "the default route is spread over two providers, and the second one's network forwards nothing though its router answers ARP: what is sent by wan1 gets no answer"
  with_two_isps
  gw ip route add default nexthop via 198.51.100.1 dev wan0 nexthop via 192.0.2.1 dev wan1
  set_ gw net.ipv4.fib_multipath_hash_policy=1
  on isp2 iptables -I FORWARD -j DROP
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.2
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 192.0.2.2
EOF
  serve tcp web 443
  ask pc tcp 203.0.113.10 443 20
  ask server tcp 203.0.113.10 443 10
}

ftp-listing-hangs() {
  fault "FTP: login works, listings and transfers fail" \
    "no FTP helper is assigned to port 21 (nothing assigns it automatically any more): the server's private address in its PASV answer is not translated"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 21 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  default client 198.51.100.254 # of its provider, who knows no private addresses
  serve ftp server 21
  ask client ftp 198.51.100.1 21 3
}

names-do-not-resolve() {
  fault "no name resolves in the office; connections to addresses work" \
    "rules against tracked DNS (NOTRACK for UDP port 53, from a tuning guide): untracked, the queries are not masqueraded and leave wan0 with private sources"
  with_isp
  rules <<'EOF'
-t raw -A PREROUTING -p udp --dport 53 -j CT --notrack
-t raw -A PREROUTING -p udp --sport 53 -j CT --notrack
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp web 53
  serve tcp web 443
  ask pc udp 203.0.113.10 53 8
  ask server udp 203.0.113.10 53 2
  ask pc tcp 203.0.113.10 443 2
}

published-port-dead() {
  fault "the container's published port times out, and the container has no internet; iptables -L looks right" \
    "an old firewall script's rules are still in iptables-legacy, whose policy FORWARD DROP applies beside Docker's rules in iptables-nft"
  with_host
  with_bridge docker0 172.17.0.1/16 app 172.17.0.2/16
  docker_rules
  gw iptables-legacy -P FORWARD DROP
  gw iptables-legacy -A FORWARD -i eth1 -o eth0 -j ACCEPT
  gw iptables-legacy -A FORWARD -i eth0 -o eth1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  serve tcp app 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 5
  ask app tcp 198.51.100.10 443 3
}

health-checks-fail() {
  fault "the cloud's load balancer takes the service for dead, direct clients reach it" \
    "a bogon filter in raw PREROUTING drops sources in 10.0.0.0/8 at wan0, where the load balancer's checks come from (10.100.0.0/16)"
  typical
  router vpc
  node balancer
  plug wan vpc wan0 198.51.100.254/24
  link vpc lb0 10.100.0.1/24 balancer eth0 10.100.0.5/24
  default balancer 10.100.0.1
  default gw 198.51.100.254
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -s 127.0.0.0/8 -j DROP
-t raw -A PREROUTING -i wan0 -s 10.0.0.0/8 -j DROP
-t raw -A PREROUTING -i wan0 -s 172.16.0.0/12 -j DROP
-t raw -A PREROUTING -i wan0 -s 192.168.0.0/16 -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  ask balancer tcp 198.51.100.1 80 3
  ask client tcp 198.51.100.1 80 8
}

one-visitor-in-four() {
  fault "a quarter of the connections to the site is refused" \
    "numgen counts to 4, but its map has only three backends since the fourth was removed: every fourth connection is not translated, and gw itself resets it"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  ip -n server addr add 192.168.1.12/24 dev eth0
  ruleset <<'EOF'
table ip lb {
  chain prerouting {
    type nat hook prerouting priority dstnat
    iifname "wan0" tcp dport 80 dnat to numgen inc mod 4 map { 0 : 192.168.1.10, 1 : 192.168.1.11, 2 : 192.168.1.12 }
  }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 80
  ask client tcp 198.51.100.1 80 40
}

ipv6-dead-since-new-prefix() {
  fault "IPv6 to the internet times out since the night, IPv4 works" \
    "the provider delegates 2001:db8:51::/64 now, the NPTv6 rules still translate to 2001:db8:50::/64: nothing comes back to the old prefix"
  with_isp
  link isp sixa 2001:db8:aa::1/64 web six 2001:db8:aa::10/64
  default web 2001:db8:aa::1
  ip -n gw addr add 2001:db8:ff::2/64 dev wan0
  ip -n isp addr add 2001:db8:ff::1/64 dev cust0
  ip -n gw addr add fd00:1::1/64 dev lan0
  ip -n pc addr add fd00:1::20/64 dev eth0
  default pc fd00:1::1
  default gw 2001:db8:ff::1
  ip -n isp route add 2001:db8:51::/64 via 2001:db8:ff::2
  rules <<'EOF'
-6 -t mangle -A POSTROUTING -s fd00:1::/64 -o wan0 -j SNPT --src-pfx fd00:1::/64 --dst-pfx 2001:db8:50::/64
-6 -t mangle -A PREROUTING -d 2001:db8:50::/64 -i wan0 -j DNPT --src-pfx 2001:db8:50::/64 --dst-pfx fd00:1::/64
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp web 443 bind=
  ask pc tcp 2001:db8:aa::10 443 5
  ask pc tcp 203.0.113.10 443 2
}

calls-without-audio() {
  fault "calls are set up, but callers outside are not heard" \
    "DNAT to the PBX exists for SIP (5060) only, not for RTP (10000-20000): media of callers ends at gw itself, in INPUT's DROP"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-t nat -A PREROUTING -i wan0 -p udp --dport 5060 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 5060
  serve udp server 12002
  serve udp server 12004
  ask client udp 198.51.100.1 5060 1
  ask client udp 198.51.100.1 12002 50 port=30000
  ask client udp 198.51.100.1 12004 50 port=30002
}

everything-stalls-since-noon() {
  fault "new connections fail in both directions, those that exist go on" \
    "gw's connection table is full of established connections, which stay for days: each new one is dropped"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  awk -v n="$(gw cat /proc/sys/net/netfilter/nf_conntrack_max)" 'BEGIN { for (i = 0; i < n; i++)
    printf "-A -p tcp -s 192.168.1.%d -d 203.0.%d.%d --sport %d --dport 443 --state ESTABLISHED -u ASSURED,SEEN_REPLY -t 400000\n",
      100 + i % 50, int(i / 50) % 200, 10, 20000 + int(i / 10000) }' >"${out:?}/table"
  gw conntrack -R "$out/table" >/dev/null 2>&1 || true
  rm "$out/table"
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 8
  ask pc tcp 198.51.100.10 443 4
}

# ---- healthy

shop-under-scan() {
  healthy "a scanner tries ports that INPUT drops, and pings that are dropped: both on purpose (scanner's attempts fail); the shop works"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  rules <<'EOF'
-P INPUT DROP
-P FORWARD DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 443 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 8
  ask pc tcp 198.51.100.10 443 3
  for port in 23 445 3389 8080; do ask scanner tcp 198.51.100.1 $port 3 timeout=1; done
  ask scanner ping 198.51.100.1 - 1
}

lte-stick-unplugged() {
  healthy "the backup uplink wwan0 has no carrier; its rules and its route of high metric wait for it"
  with_isp
  node modem
  link gw wwan0 10.64.0.2/30 modem eth0 10.64.0.1/30
  ip -n modem link set eth0 down
  gw ip route add default via 10.64.0.1 dev wwan0 metric 900
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wwan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wwan0 -j MASQUERADE
EOF
  serve tcp web 443
  serve tcp server 443
  ask pc tcp 203.0.113.10 443 5
  ask web tcp 198.51.100.2 443 5
}

two-lines-both-serve() {
  healthy "two uplinks: incoming connections are answered by the line they came by (connection marks); the PC always uses the second, the rest the first; rp_filter is loose"
  with_two_isps
  gw ip route add default via 198.51.100.1
  gw ip route add default via 192.0.2.1 table 102
  gw ip rule add fwmark 2 lookup 102 priority 100
  gw ip rule add from 192.168.1.20 lookup 102 priority 200
  set_ gw net.ipv4.conf.{all,wan0,wan1}.rp_filter=2
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan+ -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp web 443
  ask web tcp 192.0.2.2 80 4
  ask web tcp 198.51.100.2 80 4
  ask pc tcp 203.0.113.10 443 3
}

capped-line() {
  healthy "the uplink is shaped to 20 Mbit/s with HTB, guests to 4 Mbit/s; traffic stays below"
  typical
  node guest
  link gw guest0 192.168.50.1/24 guest eth0 192.168.50.20/24
  default guest 192.168.50.1
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 20mbit burst 64k quantum 6000
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 16mbit ceil 20mbit burst 64k quantum 6000
  gw tc class add dev wan0 parent 1:1 classid 1:30 htb rate 4mbit ceil 4mbit burst 64k quantum 6000
  rules <<'EOF'
-t mangle -A FORWARD -i guest0 -o wan0 -j CLASSIFY --set-class 1:30
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 4 up=60000
  ask guest tcp 198.51.100.10 443 2 up=20000
}

short-memory() {
  healthy "timeouts of connections are shortened (established 10 minutes, UDP 10 and 60 s, TIME_WAIT 10 s); sessions that pause for 5 s live on"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=600 net.netfilter.nf_conntrack_tcp_timeout_time_wait=10 \
    net.netfilter.nf_conntrack_udp_timeout=10 net.netfilter.nf_conntrack_udp_timeout_stream=60 net.netfilter.nf_conntrack_tcp_timeout_fin_wait=20
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 5432
  serve udp client 53
  ask client tcp 198.51.100.1 5432 3 requests=3 gap=5
  ask pc udp 198.51.100.10 53 8
  ask server udp 198.51.100.10 53 1 port=5300
}

flow-export-to-collector() {
  healthy "NetFlow and syslog leave by NAT to a collector, which never answers (UDP one-way, on purpose); syslog comes in by DNAT just so"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp --dport 514 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp client 2055 answer=no
  serve udp server 514 answer=no
  serve tcp client 443
  ask pc udp 198.51.100.10 2055 20 port=2055
  ask client udp 198.51.100.1 514 8 answer=no
  ask client udp 198.51.100.1 514 5 port=5514
  ask pc tcp 198.51.100.10 443 4
}

monitor-resets-its-checks() {
  healthy "a monitor ends its checks by RST, and a client of a slow report gives up after 1 s (its attempts fail on purpose: the report takes 4 s); all others are served"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 80,8080 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp server 8080 delay=4
  ask client tcp 198.51.100.1 80 10 abort=1
  ask client tcp 198.51.100.1 80 5
  ask client tcp 198.51.100.1 8080 1 timeout=6
  ask client tcp 198.51.100.1 8080 1 timeout=1
}

ssh-after-knocking() {
  healthy "SSH behind DNAT opens after knocking at UDP 7000 and 8000 (knocks are dropped, on purpose); a stranger who does not knock times out"
  typical
  node stranger
  plug wan stranger eth0 198.51.100.99/24
  ruleset <<'EOF'
table inet knock {
  set first { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
  set open { type ipv4_addr; flags dynamic,timeout; timeout 1m; }
  chain input {
    type filter hook prerouting priority mangle
    iifname "wan0" udp dport 7000 update @first { ip saddr } drop
    iifname "wan0" udp dport 8000 ip saddr @first update @open { ip saddr } drop
    iifname "wan0" udp dport 8000 drop
    iifname "wan0" tcp dport 22 ct state new ip saddr != @open drop
  }
}
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 22 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 22
  ask client udp 198.51.100.1 7000 0.5 answer=no
  ask client udp 198.51.100.1 8000 0.5 answer=no after=0.9
  ask client tcp 198.51.100.1 22 4 after=1.5
  ask stranger tcp 198.51.100.1 22 1 timeout=1
}

private-nets-null-routed() {
  healthy "private networks that are not here are null-routed, so that they do not leak to the provider; a PC still pings an old printer in 10.1.1.0/24 (fails, on purpose)"
  with_isp
  gw ip route add unreachable 10.0.0.0/8
  gw ip route add unreachable 172.16.0.0/12
  gw ip route add blackhole 192.168.0.0/16
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.2
EOF
  serve tcp web 443
  serve tcp server 443
  ask pc tcp 203.0.113.10 443 6
  ask web tcp 198.51.100.2 443 4
  ask pc ping 10.1.1.9 - 1
}

cameras-kept-at-home() {
  healthy "cameras may not reach the internet: what they send home is dropped (fails, on purpose); the LAN reaches them, and everything else works"
  typical
  node camera
  link gw iot0 192.168.30.1/24 camera eth0 192.168.30.40/24
  default camera 192.168.30.1
  rules <<'EOF'
-P FORWARD DROP
-N IOT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i iot0 -j IOT
-A IOT -p udp --dport 123 -j ACCEPT
-A IOT -j DROP
-A FORWARD -i lan0 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  serve udp client 123
  serve tcp camera 554
  ask camera tcp 198.51.100.10 443 2
  ask camera udp 198.51.100.10 123 1
  ask pc tcp 192.168.30.40 554 3
  ask pc tcp 198.51.100.10 443 5
}

browsers-without-quic() {
  healthy "QUIC from the LAN is rejected so that browsers use TCP, which the proxy's log sees (UDP 443 is refused, on purpose)"
  typical
  rules <<'EOF'
-A FORWARD -i lan0 -o wan0 -p udp --dport 443 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -j DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  serve udp client 443
  ask pc udp 198.51.100.10 443 3
  ask pc tcp 198.51.100.10 443 8
  ask server tcp 198.51.100.10 443 3
}

routed-block() {
  healthy "the provider routes 192.0.2.8/29 to gw; DNAT and SNAT use its addresses, none of which is on an interface, and a blackhole route ends what is not translated"
  with_isp
  ip -n isp route add 192.0.2.8/29 via 198.51.100.2
  gw ip route add blackhole 192.0.2.8/29
  ruleset <<'EOF'
table ip nat {
  map published { type ipv4_addr . inet_service : ipv4_addr . inet_service; elements = { 192.0.2.10 . 443 : 192.168.1.10 . 8443, 192.0.2.10 . 25 : 192.168.1.10 . 25 }; }
  chain prerouting { type nat hook prerouting priority dstnat; dnat ip to ip daddr . tcp dport map @published; }
  chain postrouting {
    type nat hook postrouting priority srcnat
    oifname "wan0" ip saddr 192.168.1.10 snat to 192.0.2.10
    oifname "wan0" ip saddr 192.168.1.0/24 snat to 192.0.2.11-192.0.2.12
  }
}
EOF
  serve tcp server 8443
  serve tcp web 443
  ask web tcp 192.0.2.10 443 6
  ask pc tcp 203.0.113.10 443 5
  ask server tcp 203.0.113.10 443 2
}

prefix-translation() {
  healthy "IPv6 of the LAN is fd00:1::/64, translated one to one (NPTv6, without connection tracking) to the provider's prefix; IPv4 is masqueraded"
  with_isp
  link isp sixa 2001:db8:aa::1/64 web six 2001:db8:aa::10/64
  default web 2001:db8:aa::1
  ip -n gw addr add 2001:db8:ff::2/64 dev wan0
  ip -n isp addr add 2001:db8:ff::1/64 dev cust0
  ip -n gw addr add fd00:1::1/64 dev lan0
  ip -n pc addr add fd00:1::20/64 dev eth0
  default pc fd00:1::1
  default gw 2001:db8:ff::1
  ip -n isp route add 2001:db8:51::/64 via 2001:db8:ff::2
  rules <<'EOF'
-6 -t raw -A PREROUTING -j CT --notrack
-6 -t mangle -A POSTROUTING -s fd00:1::/64 -o wan0 -j SNPT --src-pfx fd00:1::/64 --dst-pfx 2001:db8:51::/64
-6 -t mangle -A PREROUTING -d 2001:db8:51::/64 -i wan0 -j DNPT --src-pfx 2001:db8:51::/64 --dst-pfx fd00:1::/64
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp web 443 bind=
  ask pc tcp 2001:db8:aa::10 443 5
  ask pc tcp 203.0.113.10 443 4
}

box-behind-vpn-killswitch() {
  healthy "one device goes by a VPN, by policy routing; an unreachable route with a high metric keeps it off the uplink when the VPN is down (it is up)"
  with_isp
  router vpn
  link gw tun0 10.8.0.6/24 vpn tun0 10.8.0.1/24
  link vpn core0 192.0.2.1/24 web eth1 192.0.2.10/24
  default vpn 192.0.2.10
  on vpn iptables -t nat -A POSTROUTING -o core0 -j MASQUERADE
  gw ip route add default via 10.8.0.1 dev tun0 table 200
  gw ip route add unreachable default metric 4000 table 200
  gw ip rule add from 192.168.1.20 lookup 200 priority 1000
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o tun0 -j MASQUERADE
-t mangle -A FORWARD -o tun0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp web 443
  ask pc tcp 203.0.113.10 443 5
  ask server tcp 203.0.113.10 443 5
}

container-with-lan-address() {
  healthy "a container has an address of the LAN by macvlan; gw reaches it by a macvlan of its own with a host route, and the container uses that as its router"
  typical
  node app
  ip -n gw link add link lan0 name app0 netns app type macvlan mode bridge
  address app app0 192.168.1.60/24
  ip -n gw link add link lan0 name shim0 type macvlan mode bridge
  address gw shim0 192.168.1.2/32
  ip -n gw route add 192.168.1.60/32 dev shim0
  default app 192.168.1.2
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8080 -j DNAT --to-destination 192.168.1.60:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp app 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 6
  ask app tcp 198.51.100.10 443 3
  ask pc tcp 192.168.1.60 80 2
}

backend-in-maintenance() {
  healthy "a backend is switched off and was taken out of the pool; gw's health check goes on trying it, once in 2 s (fails, on purpose)"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  ruleset <<'EOF'
table ip lb {
  chain prerouting {
    type nat hook prerouting priority dstnat
    iifname "wan0" tcp dport 80 dnat to jhash ip saddr . tcp sport mod 2 map { 0 : 192.168.1.10, 1 : 192.168.1.11 }
  }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 80
  ask client tcp 198.51.100.1 80 12
  ask gw tcp 192.168.1.10 80 0.5
  ask gw tcp 192.168.1.11 80 0.5
  ask gw tcp 192.168.1.12 80 0.5
}

dsl-with-small-packets() {
  healthy "the line takes 1400 bytes and its provider sends no ICMP; gw clamps the MSS, so that large transfers work both ways"
  with_isp
  ip -n gw link set wan0 mtu 1400
  ip -n isp link set cust0 mtu 1400
  on isp iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP
  rules <<'EOF'
-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp web 443
  serve tcp server 80
  ask pc tcp 203.0.113.10 443 3 up=50000
  ask pc tcp 203.0.113.10 443 3 down=50000
  ask web tcp 198.51.100.2 80 3 down=50000
}

tenants-with-same-addresses() {
  healthy "two tenants both use 10.0.0.0/24; zones of connection tracking (original direction only) and marks keep them apart behind one public address"
  with_host
  node red blue
  link gw red0 10.0.0.1/24 red eth0 10.0.0.20/24
  link gw blue0 10.0.0.1/24 blue eth0 10.0.0.20/24
  default red 10.0.0.1
  default blue 10.0.0.1
  gw ip route add 10.0.0.0/24 dev red0 table 101
  gw ip route add 10.0.0.0/24 dev blue0 table 102
  gw ip rule add fwmark 1 lookup 101
  gw ip rule add fwmark 2 lookup 102
  set_ gw net.ipv4.conf.{all,red0,blue0}.rp_filter=0
  rules <<'EOF'
-t raw -A PREROUTING -i red0 -j CT --zone-orig 1
-t raw -A PREROUTING -i blue0 -j CT --zone-orig 2
-t mangle -A PREROUTING -i red0 -m conntrack --ctstate NEW -j CONNMARK --set-mark 1
-t mangle -A PREROUTING -i blue0 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i wan0 -j CONNMARK --restore-mark
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  ask red tcp 198.51.100.10 443 6
  ask blue tcp 198.51.100.10 443 6
}

house-resolver-for-all() {
  healthy "all DNS of the LAN is redirected to the resolver 192.168.1.10, whatever server a device asks; the resolver itself is excepted"
  with_isp
  rules <<'EOF'
-t nat -A PREROUTING -i lan0 ! -s 192.168.1.10 ! -d 192.168.1.10 -p udp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i lan0 ! -s 192.168.1.10 ! -d 192.168.1.10 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 192.168.1.10 -o lan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 53
  serve tcp server 53
  serve udp web 53
  serve tcp web 443
  ask pc udp 203.0.113.10 53 8
  ask pc tcp 203.0.113.99 53 1 want=server
  ask server udp 203.0.113.10 53 5
  ask pc tcp 203.0.113.10 443 3
}

ftp-at-another-port() {
  healthy "FTP at port 2121, with the helper assigned by a CT rule; data connections pass as RELATED"
  typical
  rules <<'EOF'
-P FORWARD DROP
-t raw -A PREROUTING -i wan0 -p tcp --dport 2121 -j CT --helper ftp
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 2121 -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 2121 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp server 2121
  serve tcp client 443
  ask client ftp 198.51.100.1 2121 4
  ask pc tcp 198.51.100.10 443 4
}
