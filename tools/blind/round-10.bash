# shellcheck shell=bash
# Round 10: what comes in as tickets: shops, offices, branches, phones, pods and providers.

# A Docker host as gateway: client 198.51.100.10 – gw wan0 198.51.100.1, docker0 172.17.0.1 – containers NAME=ADDR
docker_host() {
  local pair n=0
  router gw
  node client
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  ip -n gw link add docker0 up type bridge
  ip -n gw addr add 172.17.0.1/16 dev docker0
  for pair; do
    node "${pair%=*}"
    link gw "veth$((n += 1))" - "${pair%=*}" eth0 "${pair#*=}/16"
    ip -n gw link set "veth$n" master docker0
    default "${pair%=*}" 172.17.0.1
  done
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 -j ACCEPT
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
EOF
}
publish_port() { # PORT ADDR PORT [PROTOCOL]
  rules <<EOF
-t nat -A DOCKER ! -i docker0 -p ${4:-tcp} --dport $1 -j DNAT --to-destination $2:$3
-A DOCKER -d $2/32 ! -i docker0 -o docker0 -p ${4:-tcp} --dport $3 -j ACCEPT
EOF
}
# client 203.0.113.50 – isp1 – 198.51.100.2 wan0 gw; also – isp2 – 192.0.2.2 wan1 gw; gw lan0 – server, pc.
# The providers let only their own addresses out.
two_isps() {
  router gw isp1 isp2
  node client server pc
  switch inet lan
  plug inet client eth0 203.0.113.50/24
  plug inet isp1 up0 203.0.113.1/24
  plug inet isp2 up0 203.0.113.2/24
  link gw wan0 198.51.100.2/30 isp1 cust0 198.51.100.1/30
  link gw wan1 192.0.2.2/30 isp2 cust0 192.0.2.1/30
  plug lan gw lan0 192.168.1.1/24
  plug lan server eth0 192.168.1.10/24
  plug lan pc eth0 192.168.1.20/24
  default server 192.168.1.1
  default pc 192.168.1.1
  default gw 198.51.100.1
  ip -n client route add 198.51.100.0/30 via 203.0.113.1
  ip -n client route add 192.0.2.0/30 via 203.0.113.2
  on isp1 iptables -A FORWARD -i cust0 ! -s 198.51.100.0/30 -j DROP
  on isp2 iptables -A FORWARD -i cust0 ! -s 192.0.2.0/30 -j DROP
}
# typical, and a branch over VXLAN: gw vpn0 172.31.0.1 – branch vpn0 172.31.0.2 – files 10.20.0.10
with_branch() {
  typical
  router branch
  node files
  plug wan branch eth0 198.51.100.77/24
  link branch lan0 10.20.0.1/24 files eth0 10.20.0.10/24
  default files 10.20.0.1
  ip -n gw link add vpn0 mtu 1450 up type vxlan id 7 local 198.51.100.1 remote 198.51.100.77 dstport 4789
  ip -n branch link add vpn0 mtu 1450 up type vxlan id 7 local 198.51.100.77 remote 198.51.100.1 dstport 4789
  ip -n gw addr add 172.31.0.1/30 dev vpn0
  ip -n branch addr add 172.31.0.2/30 dev vpn0
  ip -n gw route add 10.20.0.0/24 via 172.31.0.2
  ip -n branch route add 192.168.1.0/24 via 172.31.0.1
}

# Faults

shop-down-since-hardening() {
  fault "https to the container times out, http works" "DOCKER-USER allows port 443, but behind DNAT the port is the container's 8443: the DROP at the chain's end takes it in FORWARD"
  docker_host web=172.17.0.2
  publish_port 80 172.17.0.2 80
  publish_port 443 172.17.0.2 8443
  rules <<'EOF'
-A DOCKER-USER -i wan0 -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A DOCKER-USER -i wan0 -p tcp -m multiport --dports 80,443 -j RETURN
-A DOCKER-USER -i wan0 -j DROP
EOF
  serve tcp web 80
  serve tcp web 8443
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 80 2
}

guests-offline() {
  fault "the guest network reaches nothing outside; the office does" "masquerade is limited to 192.168.1.0/24: guests' packets leave wan0 with their private source 192.168.30.x and never get an answer"
  typical
  node guest
  switch air
  plug air gw guest0 192.168.30.1/24
  plug air guest eth0 192.168.30.51/24
  default guest 192.168.30.1
  ruleset <<'EOF'
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; ip saddr 192.168.1.0/24 oifname "wan0" counter masquerade; }
}
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname { "lan0", "guest0" } oifname "wan0" accept
  }
}
EOF
  serve tcp client 443
  ask guest tcp 198.51.100.10 443 5
  ask pc tcp 198.51.100.10 443 3
}

office-offline-after-fibre() {
  fault "nobody in the office reaches the internet" "masquerade is still bound to the old line, -o wan0; traffic leaves by wan1 with private sources"
  router gw
  node client pc modem
  switch wan lan
  link gw wan0 203.0.113.2/30 modem eth0 -
  ip -n modem link set eth0 down
  plug wan gw wan1 198.51.100.1/24
  plug wan client eth0 198.51.100.10/24
  plug lan gw lan0 192.168.1.1/24
  plug lan pc eth0 192.168.1.20/24
  default gw 198.51.100.10
  default pc 192.168.1.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  serve udp client 53
  ask pc tcp 198.51.100.10 443 4
  ask pc udp 198.51.100.10 53 4
}

camera-only-from-inside() {
  fault "the recorder's web page times out from outside" "DNAT goes to 192.168.1.10, which has another default gateway (192.168.1.254): its answers do not come back by gw"
  typical
  router old
  plug lan old eth0 192.168.1.254/24
  ip -n server route replace default via 192.168.1.254
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 8000 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8000 5
  ask pc tcp 192.168.1.10 80 2
  ask pc tcp 198.51.100.10 443 2
}

intranet-only-from-home() {
  fault "in the office the public name of the web server times out, from outside it works" "hairpin: DNAT back into the LAN without masquerade, so that the server answers the PC directly, from the wrong address"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  serve tcp server 443
  ask pc tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 443 3
}

dead-after-reboot() {
  fault "nothing passes the gateway in either direction" "net.ipv4.ip_forward is 0: the line in sysctl.d was lost"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  set_ gw net.ipv4.ip_forward=0
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.10 443 3
}

big-downloads-stall() {
  fault "large pages of the web server hang, small ones are fine" "wan0 has MTU 1400; the fragmentation-needed messages to the server are dropped by OUTPUT (icmp destination-unreachable), and no MSS is clamped"
  typical
  ip -n gw link set wan0 mtu 1400
  rules <<'EOF'
-A OUTPUT -p icmp --icmp-type destination-unreachable -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  ask client tcp 198.51.100.1 80 4 down=60000
  ask client tcp 198.51.100.1 80 2
}

uploads-stall() {
  fault "uploads to the cloud hang, browsing works" "beyond the provider the path has MTU 1300 and no ICMP comes back: full-size segments vanish, and gw does not clamp the MSS"
  router gw isp
  node cloud pc
  switch lan
  link gw wan0 198.51.100.2/30 isp cust0 198.51.100.1/30
  link isp up0 203.0.113.1/24 cloud eth0 203.0.113.80/24
  ip -n isp link set up0 mtu 1300
  plug lan gw lan0 192.168.1.1/24
  plug lan pc eth0 192.168.1.20/24
  default gw 198.51.100.1
  default pc 192.168.1.1
  default cloud 203.0.113.1
  on isp iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP
  gw nft -f - <<<'table ip nat { chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }; }'
  serve tcp cloud 443
  ask pc tcp 203.0.113.80 443 4 up=40000
  ask pc tcp 203.0.113.80 443 2
}

second-line-dead() {
  fault "the web server is not reachable by the second line's address" "strict rp_filter on wan1: the way back to the client is by wan0 in the table that the check consults, so packets are dropped as they come in"
  two_isps
  set_ gw net.ipv4.conf.{all,wan0,wan1,lan0}.rp_filter=1
  ip -n gw route add default via 192.0.2.1 table 102
  ip -n gw rule add fwmark 2 lookup 102
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -p tcp -m multiport --dports 80,443 ! -i lan0 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 192.0.2.2 443 5
  ask client tcp 198.51.100.2 443 3
}

mail-by-backup-line-times-out() {
  fault "mail servers that try the second MX, on the second line, time out" "answers to connections that came by wan1 leave by wan0 with wan1's address, as nothing routes by connection or source; the provider drops them"
  two_isps
  ruleset <<'EOF'
table ip nat {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname { "wan0", "wan1" } tcp dport { 25, 587 } dnat to 192.168.1.10
  }
  chain post { type nat hook postrouting priority srcnat; oifname { "wan0", "wan1" } masquerade; }
}
EOF
  serve tcp server 25
  ask client tcp 192.0.2.2 25 4
  ask client tcp 198.51.100.2 25 4
}

phone-mute-since-failover() {
  fault "the phone has been offline since the line was switched, browsing works" "its one UDP flow never pauses, and its conntrack entry still translates to the first line's address 198.51.100.2, which the second provider drops"
  two_isps
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.2
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 192.0.2.2
EOF
  serve udp client 5060
  serve tcp client 443
  ask pc udp 203.0.113.50 5060 5 port=5060
  sleep 2
  on isp1 iptables -I FORWARD -j DROP
  ip -n gw route replace default via 192.0.2.1
  ask pc tcp 203.0.113.50 443 3
}

ftp-listing-hangs() {
  fault "FTP logs in, then the listing times out" "the egress list accepts port 21 and RELATED, but no FTP helper is assigned to the connection, so passive data connections are dropped in FORWARD"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p tcp -m multiport --dports 21,80,443,587,993 -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p udp -m multiport --dports 53,123 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp client 21
  serve tcp client 443
  ask pc ftp 198.51.100.10 21 4
  ask pc tcp 198.51.100.10 443 2
}

shop-slow-at-peak() {
  fault "most new connections to the shop hang in the busy hours" "SYN-flood protection: FORWARD accepts 5 SYNs a second, burst 10, of all clients together, and drops the others"
  typical
  rules <<'EOF'
-N syn-flood
-A FORWARD -i wan0 -p tcp --syn -j syn-flood
-A syn-flood -m limit --limit 5/second --limit-burst 10 -j RETURN
-A syn-flood -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 40
}

resolver-times-out() {
  fault "most DNS lookups of the office resolver time out, web works" "UDP is translated to 32 ports only (40000-40031); each lookup holds one for 30 s, so at 30 a second none is free and packets are dropped in POSTROUTING"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -p udp -j SNAT --to-source 198.51.100.1:40000-40031
-t nat -A POSTROUTING -o wan0 -p tcp -j SNAT --to-source 198.51.100.1:1024-65535
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve udp client 53
  serve tcp client 443
  ask pc udp 198.51.100.10 53 30
  ask pc tcp 198.51.100.10 443 3
}

admin-page-unreachable() {
  fault "the admin page on port 8443 times out" "DNAT to 127.0.0.1 without route_localnet on wan0: the kernel drops the packets as martian destinations"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 127.0.0.1:8443
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 8443 bind=127.0.0.1
  serve tcp server 443
  ask client tcp 198.51.100.1 8443 5
  ask client tcp 198.51.100.1 443 2
}

plain-http-hangs() {
  fault "http pages do not load in the office, https does" "port 80 is redirected to the proxy on gw, port 3128, which INPUT does not accept (it accepts 80): dropped by its policy"
  typical
  ruleset <<'EOF'
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname "lo" accept
    meta l4proto icmp accept
    iifname "lan0" tcp dport { 22, 53, 80 } accept
    iifname "lan0" udp dport { 53, 67, 123 } accept
  }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "lan0" tcp dport 80 redirect to :3128; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp gw 3128
  serve tcp client 443
  ask pc tcp 198.51.100.10 80 5
  ask pc tcp 198.51.100.10 443 3
}

refused-after-deploy() {
  fault "https connections are refused at once, http works" "the service on 192.168.1.10 listens on 9443 since the deployment, DNAT leads to 8443: the backend resets"
  typical
  ruleset <<'EOF'
table ip nat {
  map services { type inet_service : ipv4_addr . inet_service; elements = { 80 : 192.168.1.10 . 8080, 443 : 192.168.1.10 . 8443 }; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" dnat ip to tcp dport map @services; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 8080
  serve tcp server 9443
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 80 2
}

dead-since-os-upgrade() {
  fault "the forwarded web server times out since the upgrade" "iptables-legacy still holds FORWARD's policy DROP with the old server's ACCEPT; the nft rules accept, the legacy table drops"
  typical
  gw iptables-legacy -P FORWARD DROP
  gw iptables-legacy -A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT
  gw iptables-legacy -A FORWARD -i lan0 -o wan0 -j ACCEPT
  gw iptables-legacy -A FORWARD -d 192.168.1.5 -p tcp --dport 443 -j ACCEPT
  ruleset <<'EOF'
table inet fw {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ct status dnat accept
    iifname "lan0" oifname "wan0" accept
  }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" meta nfproto ipv4 tcp dport 443 dnat ip to 192.168.1.10:443; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" meta nfproto ipv4 masquerade; }
}
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 6
  ask pc tcp 198.51.100.10 443 2
}

only-v6-visitors-fail() {
  fault "IPv6 connections to the web server time out, IPv4 works" "ip6tables INPUT drops all ICMPv6, neighbour solicitations too: nobody on wan0 learns the gateway's MAC address"
  typical 6
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:1::1 -p tcp --dport 443 -j DNAT --to-destination [2001:db8:2::10]:443
-6 -P INPUT DROP
-6 -A INPUT -i lo -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A INPUT -p tcp --dport 22 -j ACCEPT
EOF
  serve tcp server 443 bind=
  ask client tcp 2001:db8:1::1 443 5
  ask client tcp 198.51.100.1 443 3
}

mail-stays-in-queue() {
  fault "the mail server cannot deliver, other machines reach everything" "it is translated to 198.51.100.25, which gw does not have since the renumbering and for which nobody answers ARP: answers do not come back"
  typical
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.10 -o wan0 -p tcp --dport 25 -j SNAT --to-source 198.51.100.25
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp client 25
  serve tcp client 443
  ask server tcp 198.51.100.10 25 4
  ask pc tcp 198.51.100.10 443 3
}

service-fails-for-neighbours() {
  fault "a pod cannot use the service address of a pod of the same node, from outside it works" "both are on the bridge cni0 and bridge-nf-call-iptables is 0: the answer is bridged past conntrack and comes from the pod's own address"
  router gw
  node client shop db
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  ip -n gw link add cni0 up type bridge
  ip -n gw addr add 10.244.1.1/24 dev cni0
  set_ gw net.bridge.bridge-nf-call-iptables=0 net.ipv4.conf.{all,cni0}.send_redirects=0
  link gw vetha - shop eth0 10.244.1.11/24
  link gw vethb - db eth0 10.244.1.12/24
  ip -n gw link set vetha master cni0
  ip -n gw link set vethb master cni0
  default shop 10.244.1.1
  default db 10.244.1.1
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-SVC-DB
-t nat -N KUBE-SEP-DB1
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A KUBE-SERVICES -d 10.96.0.20/32 -p tcp --dport 5432 -m comment --comment default/db -j KUBE-SVC-DB
-t nat -A KUBE-SERVICES -p tcp --dport 30432 -m addrtype --dst-type LOCAL -j KUBE-SVC-DB
-t nat -A KUBE-SVC-DB -j KUBE-SEP-DB1
-t nat -A KUBE-SEP-DB1 -p tcp -j DNAT --to-destination 10.244.1.12:5432
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
EOF
  serve tcp db 5432
  ask shop tcp 10.96.0.20 5432 6
  ask client tcp 198.51.100.1 30432 2
}

branch-shares-unreachable() {
  fault "the branch's file server times out from head office" "masquerade without an output interface also translates what goes into the tunnel; the branch's firewall knows 192.168.1.0/24 only and drops 172.31.0.1"
  with_branch
  on branch iptables -P FORWARD DROP
  on branch iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
  on branch iptables -A FORWARD -i vpn0 -s 192.168.1.0/24 -j ACCEPT
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp files 445
  serve tcp client 443
  ask pc tcp 10.20.0.10 445 5
  ask pc tcp 198.51.100.10 443 2
}

erp-connects-then-hangs() {
  fault "connections to the ERP behind the second router open, then hang" "gw sees one direction only (the second router answers the PC directly): the handshake's ACK is invalid to conntrack and FORWARD drops invalid"
  typical
  router leased
  node erp
  plug lan leased eth0 192.168.1.2/24
  link leased far0 10.50.0.1/24 erp eth0 10.50.0.10/24
  default erp 10.50.0.1
  ip -n gw route add 10.50.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  ruleset <<'EOF'
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state vmap { established : accept, related : accept, invalid : drop }
    iifname "lan0" accept
  }
}
table ip nat { chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }; }
EOF
  serve tcp erp 3200
  serve tcp client 443
  ask pc tcp 10.50.0.10 3200 5
  ask pc tcp 198.51.100.10 443 2
}

ssh-freezes-after-a-pause() {
  fault "sessions freeze after a few seconds without typing" "nf_conntrack_tcp_timeout_established is 3 s: the entry is gone, and FORWARD drops what is NEW without SYN"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=3
  rules <<'EOF'
-A FORWARD -p tcp ! --syn -m conntrack --ctstate NEW -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 2222 -j DNAT --to-destination 192.168.1.10:22
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 22
  ask client tcp 198.51.100.1 2222 5 requests=2 gap=4.5
}

monitoring-sees-no-answers() {
  fault "SNMP polls from outside get no answer, https to the same address works" "DNAT leads to 192.168.1.11, a second address of the server, whose UDP answers come from its first, 192.168.1.10: they belong to no entry, and masquerade gives them another source port"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp --dport 161 -j DNAT --to-destination 192.168.1.11
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.11
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 161
  serve tcp server 443
  ask client udp 198.51.100.1 161 5
  ask client tcp 198.51.100.1 443 2
}

new-portal-refused() {
  fault "the new portal on port 8443 is refused" "an older rule further up forwards 8000-8999 to 192.168.1.20, where nothing listens on 8443 any more; the new rule below is never reached"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 8000:8999 -j DNAT --to-destination 192.168.1.20
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp server 8443
  serve tcp pc 8080
  ask client tcp 198.51.100.1 8443 5
  ask client tcp 198.51.100.1 443 2
}

road-warriors-cannot-dial-in() {
  fault "WireGuard clients get no handshake" "the port forward of 51820 was made for TCP, WireGuard is UDP: it ends on gw itself, which has no such port"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 51820 -j DNAT --to-destination 192.168.1.10:51820
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 51820
  serve tcp server 443
  ask client udp 198.51.100.1 51820 4 up=148 down=92
  ask client tcp 198.51.100.1 443 2
}

every-third-page-fails() {
  fault "a third of the requests fail: no route to host, or a timeout" "the load is spread over three backends; 192.168.1.12's own firewall rejects port 8080 (administratively prohibited)"
  typical
  node web2 web3
  plug lan web2 eth0 192.168.1.11/24
  plug lan web3 eth0 192.168.1.12/24
  default web2 192.168.1.1
  default web3 192.168.1.1
  on web3 iptables -A INPUT -p tcp --dport 22 -j ACCEPT
  on web3 iptables -A INPUT -m conntrack --ctstate NEW -p tcp -j REJECT --reject-with icmp-admin-prohibited
  ruleset <<'EOF'
table ip lb {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname "wan0" tcp dport 80 dnat to numgen inc mod 3 map { 0 : 192.168.1.10, 1 : 192.168.1.11, 2 : 192.168.1.12 } : 8080
  }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  for name in server web2 web3; do serve tcp "$name" 8080; done
  ask client tcp 198.51.100.1 80 30
}

database-from-lan-times-out() {
  fault "PCs that use the container's address time out since the Docker upgrade, the published port works" "Docker drops what comes to 172.17.0.2 from other interfaces already in raw PREROUTING"
  docker_host db=172.17.0.2
  node pc
  switch lan
  plug lan gw lan0 192.168.1.1/24
  plug lan pc eth0 192.168.1.20/24
  default pc 192.168.1.1
  publish_port 15432 172.17.0.2 5432
  rules <<'EOF'
-I DOCKER-USER -i lan0 -o docker0 -j ACCEPT
-t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
EOF
  serve tcp db 5432
  ask pc tcp 172.17.0.2 5432 5
  ask client tcp 198.51.100.1 15432 2
}

v6-gone-since-reconnect() {
  fault "IPv6 from the office gets no answers since the line was reconnected, IPv4 works" "the provider delegated 2001:db8:b::/48 anew; the NETMAP rule still maps the ULA to the old prefix 2001:db8:a:1::/64, which is not routed back"
  router gw isp
  node client pc
  switch lan
  link gw wan0 198.51.100.2/30,2001:db8:f::2/64 isp cust0 198.51.100.1/30,2001:db8:f::1/64
  link isp up0 203.0.113.1/24,2001:db8:c::1/64 client eth0 203.0.113.50/24,2001:db8:c::50/64
  plug lan gw lan0 192.168.1.1/24,fd00:1::1/64
  plug lan pc eth0 192.168.1.20/24,fd00:1::20/64
  default gw 198.51.100.1 2001:db8:f::1
  default pc 192.168.1.1 fd00:1::1
  default client 203.0.113.1 2001:db8:c::1
  ip -n isp route add 2001:db8:b::/48 via 2001:db8:f::2
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:a:1::/64
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:a:1::/64 -j NETMAP --to fd00:1::/64
EOF
  serve tcp client 443 bind=
  ask pc tcp 2001:db8:c::50 443 5
  ask pc tcp 203.0.113.50 443 3
}

# Healthy

scanned-all-day() {
  healthy "two scanners try telnet, RDP and SIP on the public address all the time and are dropped by INPUT's policy; the shop works (the scanners' connections fail on purpose)"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  ruleset <<'EOF'
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iifname { "lo", "lan0" } accept
    meta l4proto icmp accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ct status dnat accept
    iifname "lan0" accept
  }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 6
  ask pc tcp 198.51.100.10 443 2
  ask scanner tcp 198.51.100.1 23 4
  ask scanner tcp 198.51.100.1 3389 2
  ask scanner udp 198.51.100.1 5060 3 answer=no
}

partners-only() {
  healthy "the API is forwarded for everybody but FORWARD lets in the partners of a set only: a stranger, 198.51.100.30, is dropped on purpose"
  typical
  node stranger
  plug wan stranger eth0 198.51.100.30/24
  gw ipset create partners hash:net comment
  gw ipset add partners 198.51.100.8/29 comment "Miller Ltd, contract to 2028"
  gw ipset add partners 203.0.113.0/24 comment "Baker Inc"
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -p tcp --dport 8443 -m set --match-set partners src -j ACCEPT
-A FORWARD -i wan0 -p tcp --dport 8443 -m comment --comment not-a-partner -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 6
  ask stranger tcp 198.51.100.1 443 1
}

backup-line-unplugged() {
  healthy "the backup uplink wan1 has no carrier; its default route (metric 200), masquerade and port forward wait for the day it is needed"
  typical
  node modem
  link gw wan1 203.0.113.2/30 modem eth0 -
  ip -n modem link set eth0 down
  ip -n gw route add default via 198.51.100.10 dev wan0 metric 100
  ip -n gw route add default via 203.0.113.1 dev wan1 metric 200
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 203.0.113.2 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp client 443
  serve udp client 53
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.10 443 3
  ask pc udp 198.51.100.10 53 3
}

two-lines-in-use() {
  healthy "two uplinks: connections are marked by the line they came in by and answered there; rp_filter is loose; the office uses the first only"
  two_isps
  set_ gw net.ipv4.conf.{all,wan0,wan1}.rp_filter=2
  ip -n gw route add default via 192.0.2.1 table 102
  ip -n gw rule add fwmark 2 lookup 102
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -m connmark --mark 2 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.2
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 192.0.2.2
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 192.0.2.2 443 5
  ask client tcp 198.51.100.2 443 5
  ask pc tcp 203.0.113.50 443 3
}

limits-far-above-use() {
  healthy "hashlimit drops above 200 SYNs a second and client, connlimit above 500; use is 30 a second"
  typical
  rules <<'EOF'
-A FORWARD -i wan0 -p tcp --syn -m hashlimit --hashlimit-name syn --hashlimit-mode srcip --hashlimit-above 200/second --hashlimit-burst 400 -j DROP
-A FORWARD -i wan0 -p tcp --syn -m connlimit --connlimit-above 500 -j REJECT --reject-with tcp-reset
-A FORWARD -p icmp -m limit --limit 50/second --limit-burst 100 -j ACCEPT
-A FORWARD -p icmp -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  ask client tcp 198.51.100.1 80 30
  ask pc ping 198.51.100.10 - 4
}

second-router-in-the-lan() {
  healthy "the PCs reach a branch by a second router in the LAN: gw sees one direction only and passes lan0 to lan0 without state before it drops what is invalid"
  typical
  router leased
  node erp
  plug lan leased eth0 192.168.1.2/24
  link leased far0 10.50.0.1/24 erp eth0 10.50.0.10/24
  default erp 10.50.0.1
  ip -n gw route add 10.50.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  ruleset <<'EOF'
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname "lan0" oifname "lan0" accept
    ct state vmap { established : accept, related : accept, invalid : drop }
    iifname "lan0" oifname "wan0" accept
  }
}
table ip nat { chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }; }
EOF
  serve tcp erp 3200
  serve tcp client 443
  ask pc tcp 10.50.0.10 3200 5
  ask pc tcp 198.51.100.10 443 4
}

dsl-with-small-mtu() {
  healthy "wan0 has MTU 1400 and gw clamps the MSS to it, both ways; large transfers pass"
  typical
  ip -n gw link set wan0 mtu 1400
  rules <<'EOF'
-t mangle -A FORWARD -o wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -A FORWARD -i wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 4 down=60000
  ask pc tcp 198.51.100.10 443 3 up=40000
}

log-collector() {
  healthy "syslog and flow records are forwarded by UDP and never answered, as these protocols are"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" udp dport { 514, 2055 } dnat to 192.168.1.10; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve tcp server 443
  ask client udp 198.51.100.1 514 20 answer=no up=180
  ask client udp 198.51.100.1 2055 5 answer=no up=1200 port=40000
  ask client tcp 198.51.100.1 443 3
}

impatient-health-checks() {
  healthy "a load balancer's checks end with a reset after the answer; an old monitor gives up after 0.2 s on a page that takes 0.6 s (its requests fail on purpose)"
  typical
  node monitor
  plug wan monitor eth0 198.51.100.40/24
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A PREROUTING -i wan0 -p tcp --dport 81 -j DNAT --to-destination 192.168.1.10:8081
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  serve tcp server 8081 delay=0.6
  ask client tcp 198.51.100.1 80 10 abort=1
  ask client tcp 198.51.100.1 81 3
  ask monitor tcp 198.51.100.1 81 1 timeout=0.2
}

knock-before-ssh() {
  healthy "SSH is forwarded only to those who knocked on UDP 7000 in the last 30 s; another, 198.51.100.66, tries without and is dropped on purpose"
  typical
  node other
  plug wan other eth0 198.51.100.66/24
  ruleset <<'EOF'
table ip gate {
  set knocked { type ipv4_addr; flags dynamic, timeout; timeout 30s; }
  chain knock { type filter hook prerouting priority mangle; iifname "wan0" udp dport 7000 update @knocked { ip saddr } drop; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 22 ip saddr @knocked dnat to 192.168.1.10; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain input { type filter hook input priority filter; iifname "wan0" ct state new drop; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 22
  serve tcp server 443
  ask client udp 198.51.100.1 7000 0.2 answer=no
  ask client tcp 198.51.100.1 22 3 after=2
  ask client tcp 198.51.100.1 443 4
  ask other tcp 198.51.100.1 22 1
}

shaped-uplink() {
  healthy "HTB shapes wan0 to 20 Mbit/s with a class for calls and the rest; a few Mbit/s are used"
  typical
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 20mbit quantum 6000
  gw tc class add dev wan0 parent 1:1 classid 1:10 htb rate 4mbit ceil 20mbit prio 0 quantum 3000
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 16mbit ceil 20mbit prio 1 quantum 6000
  ruleset <<'EOF'
table ip shape { chain forward { type filter hook forward priority mangle; oifname "wan0" udp sport 5060 meta priority set 0x00010010; }; }
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 80 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 80
  serve udp client 5060
  ask client tcp 198.51.100.1 80 5 down=30000
  ask pc udp 198.51.100.10 5060 10 port=5060
}

tuned-for-many-connections() {
  healthy "conntrack timeouts are shorter than the defaults: established 2 h, time_wait 10 s, udp 15 s, stream 60 s; sessions pause for 5 s and live on"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_{established=7440,time_wait=10,fin_wait=20,close_wait=20} \
    net.netfilter.nf_conntrack_udp_timeout{=15,_stream=60} net.ipv4.ip_local_port_range='1024 65535'
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 8883 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE --random-fully
EOF
  serve tcp server 8883
  serve udp client 53
  ask client tcp 198.51.100.1 8883 4 requests=2 gap=5
  ask client tcp 198.51.100.1 8883 4
  ask pc udp 198.51.100.10 53 10
}

private-ranges-blackholed() {
  healthy "private ranges without a route end in blackholes so that they never leave by the provider; a printer still looks for its server of old, 10.9.9.9, and gets nothing, on purpose"
  typical
  node printer
  plug lan printer eth0 192.168.1.30/24
  default printer 192.168.1.1
  default gw 198.51.100.10
  ip -n gw route add blackhole 10.0.0.0/8 metric 4000
  ip -n gw route add blackhole 172.16.0.0/12 metric 4000
  ip -n gw route add blackhole 192.168.0.0/16 metric 4000
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.10 443 5
  ask printer udp 10.9.9.9 161 0.5 answer=no
}

homelab-hairpin() {
  healthy "the PCs use the public name (hairpin with masquerade); docker0 and virbr0 stand idle with their rules and without ports"
  typical
  ip -n gw link add docker0 up type bridge
  ip -n gw addr add 172.17.0.1/16 dev docker0
  ip -n gw link add virbr0 up type bridge
  ip -n gw addr add 192.168.122.1/24 dev virbr0
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 192.168.1.10 -p tcp -m multiport --dports 80,443 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-A FORWARD -o virbr0 -d 192.168.122.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i virbr0 -s 192.168.122.0/24 -j ACCEPT
-A FORWARD -o virbr0 -j REJECT --reject-with icmp-port-unreachable
EOF
  serve tcp server 443
  ask pc tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.1 443 5
}

ula-behind-one-prefix() {
  healthy "IPv6 of the LAN is a ULA, mapped one to one to the delegated prefix by NETMAP; no address of that prefix is on any interface"
  router gw isp
  node client pc server
  switch lan
  link gw wan0 198.51.100.2/30,2001:db8:f::2/64 isp cust0 198.51.100.1/30,2001:db8:f::1/64
  link isp up0 203.0.113.1/24,2001:db8:c::1/64 client eth0 203.0.113.50/24,2001:db8:c::50/64
  plug lan gw lan0 192.168.1.1/24,fd00:1::1/64
  plug lan pc eth0 192.168.1.20/24,fd00:1::20/64
  plug lan server eth0 192.168.1.10/24,fd00:1::10/64
  default gw 198.51.100.1 2001:db8:f::1
  default pc 192.168.1.1 fd00:1::1
  default server 192.168.1.1 fd00:1::1
  default client 203.0.113.1 2001:db8:c::1
  ip -n isp route add 2001:db8:b::/48 via 2001:db8:f::2
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:b:1::/64
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:b:1::/64 -j NETMAP --to fd00:1::/64
EOF
  serve tcp client 443 bind=
  serve tcp server 443 bind=
  ask pc tcp 2001:db8:c::50 443 5
  ask client tcp 2001:db8:b:1::10 443 4
  ask pc tcp 203.0.113.50 443 3
}

nat-behind-nat() {
  healthy "the provider translates a second time: wan0 has an address of 100.64.0.0/10, and bogons are refused except that one"
  router gw isp
  node client pc
  switch lan
  link gw wan0 100.64.7.2/24 isp cust0 100.64.7.1/24
  link isp up0 203.0.113.1/24 client eth0 203.0.113.50/24
  on isp iptables -t nat -A POSTROUTING -o up0 -p tcp -j SNAT --to-source 203.0.113.1:20000-24095
  on isp iptables -t nat -A POSTROUTING -o up0 -j MASQUERADE
  plug lan gw lan0 192.168.1.1/24
  plug lan pc eth0 192.168.1.20/24
  default gw 100.64.7.1
  default pc 192.168.1.1
  rules <<'EOF'
-A INPUT -i wan0 -s 100.64.7.1 -p icmp -j ACCEPT
-A INPUT -i wan0 -m conntrack --ctstate NEW -j DROP
-A FORWARD -i wan0 -m conntrack --ctstate NEW -j DROP
-A FORWARD -o wan0 -d 10.0.0.0/8 -j REJECT --reject-with icmp-net-prohibited
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp client 443
  serve udp client 443
  ask pc tcp 203.0.113.50 443 6
  ask pc udp 203.0.113.50 443 4
  ask pc ping 203.0.113.50 - 2
}

branch-by-tunnel() {
  healthy "traffic for the branch is exempt from masquerade and goes by a VXLAN tunnel with MTU 1450, MSS clamped; the branch accepts the office's addresses only"
  with_branch
  on branch iptables -P FORWARD DROP
  on branch iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
  on branch iptables -A FORWARD -i vpn0 -s 192.168.1.0/24 -j ACCEPT
  rules <<'EOF'
-t mangle -A FORWARD -o vpn0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -A FORWARD -i vpn0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1410
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp files 445
  serve tcp client 443
  ask pc tcp 10.20.0.10 445 5 down=30000
  ask pc tcp 198.51.100.10 443 4
}

cluster-node() {
  healthy "a Kubernetes node: services by chance over two pods, marks for masquerade, a service scaled to nothing that rejects and that nobody uses"
  router gw
  node client job web1 web2
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  ip -n gw link add cni0 up type bridge
  ip -n gw addr add 10.244.1.1/24 dev cni0
  set_ gw net.bridge.bridge-nf-call-iptables=1
  local pod n=10
  for pod in job web1 web2; do
    link gw "veth$((n += 1))" - "$pod" eth0 "10.244.1.$n/24"
    ip -n gw link set "veth$n" master cni0
    default "$pod" 10.244.1.1
  done
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-SVC-WEB
-t nat -N KUBE-SEP-WEB1
-t nat -N KUBE-SEP-WEB2
-t nat -N KUBE-EXT-WEB
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-POSTROUTING
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A KUBE-SERVICES -d 10.96.0.20/32 -p tcp --dport 80 -j KUBE-SVC-WEB
-t nat -A KUBE-SERVICES -p tcp --dport 30080 -m addrtype --dst-type LOCAL -j KUBE-EXT-WEB
-t nat -A KUBE-EXT-WEB -j KUBE-MARK-MASQ
-t nat -A KUBE-EXT-WEB -j KUBE-SVC-WEB
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.5 -j KUBE-SEP-WEB1
-t nat -A KUBE-SVC-WEB -j KUBE-SEP-WEB2
-t nat -A KUBE-SEP-WEB1 -s 10.244.1.12/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-WEB1 -p tcp -j DNAT --to-destination 10.244.1.12:8080
-t nat -A KUBE-SEP-WEB2 -s 10.244.1.13/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-WEB2 -p tcp -j DNAT --to-destination 10.244.1.13:8080
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -o wan0 -j MASQUERADE
-N KUBE-SERVICES
-N KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -j KUBE-FORWARD
-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp --dport 80 -m comment --comment batch/report:no-endpoints -j REJECT
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
EOF
  serve tcp web1 8080
  serve tcp web2 8080
  serve tcp client 443
  ask job tcp 10.96.0.20 80 8
  ask client tcp 198.51.100.1 30080 6
  ask job tcp 198.51.100.10 443 2
}

ftp-with-helper() {
  healthy "outbound FTP through a strict egress list: a CT rule in raw assigns the helper, the data connections are RELATED"
  typical
  rules <<'EOF'
-t raw -A PREROUTING -i lan0 -p tcp --dport 21 -j CT --helper ftp
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED -m helper --helper ftp -j ACCEPT
-A FORWARD -p icmp -m conntrack --ctstate RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p tcp -m multiport --dports 21,80,443 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp client 21
  serve tcp client 443
  ask pc ftp 198.51.100.10 21 4
  ask pc tcp 198.51.100.10 443 4
}

dns-kept-at-home() {
  healthy "DNS of the PCs to anywhere is led to the house's resolver (masqueraded, so that answers pass gw), the resolver itself is exempt; QUIC is rejected on purpose, so that browsers use TCP at once (those attempts are refused)"
  typical
  default gw 198.51.100.10
  ruleset <<'EOF'
table ip home {
  chain pre {
    type nat hook prerouting priority dstnat;
    iifname "lan0" ip saddr != 192.168.1.10 meta l4proto { tcp, udp } th dport 53 dnat to 192.168.1.10
  }
  chain post {
    type nat hook postrouting priority srcnat;
    iifname "lan0" oifname "lan0" ip daddr 192.168.1.10 masquerade
    oifname "wan0" masquerade
  }
  chain forward {
    type filter hook forward priority filter;
    iifname "lan0" oifname "wan0" udp dport 443 counter reject
  }
}
EOF
  serve udp server 53
  serve udp client 53
  serve tcp client 443
  ask pc udp 203.0.113.53 53 6
  ask server udp 198.51.100.10 53 4
  ask pc udp 198.51.100.10 443 1
  ask pc tcp 198.51.100.10 443 4
}
