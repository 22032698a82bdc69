# shellcheck shell=bash
# Round 4: 30 faults and 20 healthy odd hosts.

# What several hosts of this round use (names with _ are no hosts).

# two providers; each drops what it did not assign. inet is reached by both.
two_uplinks() {
  router gw isp1 isp2
  node inet server pc
  switch net lan
  link gw wan0 192.0.2.2/30 isp1 cpe 192.0.2.1/30
  link gw wan1 203.0.113.2/30 isp2 cpe 203.0.113.1/30
  plug net isp1 net0 198.51.100.1/24
  plug net isp2 net0 198.51.100.2/24
  plug net inet eth0 198.51.100.10/24
  ip -n inet route add 192.0.2.0/30 via 198.51.100.1
  ip -n inet route add 203.0.113.0/30 via 198.51.100.2
  on isp1 iptables -A FORWARD -i cpe ! -s 192.0.2.0/30 -j DROP
  on isp2 iptables -A FORWARD -i cpe ! -s 203.0.113.0/30 -j DROP
  plug lan gw lan0 192.168.1.1/24
  plug lan server eth0 192.168.1.10/24
  plug lan pc eth0 192.168.1.20/24
  default gw 192.0.2.1
  default server 192.168.1.1
  default pc 192.168.1.1
}

# a bridge on the gateway: NAME ADDR/LEN
gw_bridge() { ip -n gw link add "$1" up type bridge && ip -n gw addr add "$2" dev "$1"; }
# a guest on such a bridge: NAME BRIDGE ADDR/LEN VIA
gw_guest() {
  node "$1"
  link gw "veth-$1" - "$1" eth0 "$3"
  ip -n gw link set "veth-$1" master "$2"
  default "$1" "$4"
}

# client 198.51.100.10 - wan - gw 198.51.100.1
outside_gw() {
  router gw
  node client
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
}

# what dockerd writes for docker0, with one published port, 8080 to 172.17.0.2:80
docker_host() {
  outside_gw
  gw_bridge docker0 172.17.0.1/16
  gw_guest web docker0 172.17.0.2/16 172.17.0.1
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER
-N DOCKER-ISOLATION-STAGE-1
-N DOCKER-ISOLATION-STAGE-2
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp --dport 80 -j MASQUERADE
-t nat -A DOCKER -i docker0 -j RETURN
-t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
EOF
}

# kubernetes node gw with pods p1, p2; p3 on node2. NodePort 30080 and 10.96.0.50:80
kube_node() {
  outside_gw
  router node2 rtr
  node p3
  plug wan node2 eth0 198.51.100.2/24
  plug wan rtr eth0 198.51.100.254/24
  ip -n rtr route add blackhole 10.0.0.0/8
  default gw 198.51.100.254
  gw_bridge cni0 10.244.1.1/24
  gw_guest p1 cni0 10.244.1.10/24 10.244.1.1
  gw_guest p2 cni0 10.244.1.11/24 10.244.1.1
  gw bridge link set dev veth-p1 hairpin on
  gw bridge link set dev veth-p2 hairpin on
  link node2 cni0 10.244.2.1/24 p3 eth0 10.244.2.10/24
  default p3 10.244.2.1
  ip -n node2 route add 10.244.1.0/24 via 198.51.100.1
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-NODEPORTS
-t nat -N KUBE-POSTROUTING
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-SVC-WEB
-t nat -N KUBE-SEP-1
-t nat -N KUBE-SEP-2
-t nat -N KUBE-SEP-3
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A KUBE-SERVICES -d 10.96.0.50/32 -p tcp --dport 80 -j KUBE-SVC-WEB
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-MARK-MASQ
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-SVC-WEB
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-1
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-2
-t nat -A KUBE-SVC-WEB -j KUBE-SEP-3
-t nat -A KUBE-SEP-1 -s 10.244.1.10/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-1 -p tcp -j DNAT --to-destination 10.244.1.10:8080
-t nat -A KUBE-SEP-2 -s 10.244.1.11/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-2 -p tcp -j DNAT --to-destination 10.244.1.11:8080
-t nat -A KUBE-SEP-3 -s 10.244.2.10/32 -j KUBE-MARK-MASQ
-t nat -A KUBE-SEP-3 -p tcp -j DNAT --to-destination 10.244.2.10:8080
-N KUBE-FORWARD
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
EOF
  serve tcp p1 8080
  serve tcp p2 8080
  serve tcp p3 8080
}

# a provider's NAT: subscribers 100.64.0.10-.17 (node sub) - acc0 gw core0 - core - inet
cgn_box() {
  router gw core
  node sub inet
  link gw acc0 100.64.0.1/24 sub eth0 100.64.0.10/24
  local n
  for n in 11 12 13 14 15 16 17; do ip -n sub addr add 100.64.0.$n/24 dev eth0; done
  default sub 100.64.0.1
  link gw core0 192.0.2.2/30 core cpe 192.0.2.1/30
  default gw 192.0.2.1
  link core net0 198.51.100.1/24 inet eth0 198.51.100.10/24
  default inet 198.51.100.1
}

# ---- faults ----

office-ext-port-filter() {
  fault "the webmail on port 8443 of the office times out from outside" "FORWARD drops: the accept rule names the outside port 8443, but after DNAT the packet has port 443"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 8443 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.51.100.1 8443 4
  ask pc tcp 198.51.100.10 80 3
}

office-hairpin() {
  fault "PCs in the office cannot open the company site by its public name; from outside it works" "hairpin without SNAT: the server answers the PC directly, past the gateway, from 192.168.1.10; the PC expects 198.51.100.1"
  typical
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat;
    ip daddr 198.51.100.1 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet filter {
  chain forward { type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname "lan0" accept
    ct status dnat accept; }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.1 443 4
}

branch-wg-masq() {
  fault "nothing in the branch network 10.20.0.0/24 can be reached from the office; internet works" "MASQUERADE has no -o wan0: what goes into the tunnel wg0 gets the source 10.255.0.1 too, and the branch's end takes only 192.168.1.0/24 (AllowedIPs): it drops the packets silently"
  typical
  router branch
  node nas
  link gw wg0 10.255.0.1/30 branch wg0 10.255.0.2/30
  link branch lan0 10.20.0.1/24 nas eth0 10.20.0.10/24
  default nas 10.20.0.1
  ip -n gw link set wg0 mtu 1420
  ip -n gw route add 10.20.0.0/24 via 10.255.0.2
  ip -n branch route add 192.168.1.0/24 via 10.255.0.1
  on branch iptables -t raw -A PREROUTING -i wg0 ! -s 192.168.1.0/24 -j DROP
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
EOF
  serve tcp nas 445
  serve tcp client 443
  ask pc tcp 10.20.0.10 445 4
  ask pc ping 10.20.0.10 - 1
  ask pc tcp 198.51.100.10 443 3
}

branch-big-files() {
  fault "the branch can list the office's file server, but opening a large file hangs" "path MTU: the tunnel has 1400 bytes, the gateway's ICMP fragmentation-needed to the server is dropped by its own OUTPUT rule, no MSS clamping"
  typical
  router branch
  node bpc
  link gw tun0 10.255.0.1/30 branch tun0 10.255.0.2/30
  ip -n gw link set tun0 mtu 1400
  ip -n branch link set tun0 mtu 1400
  link branch lan0 10.20.0.1/24 bpc eth0 10.20.0.20/24
  default bpc 10.20.0.1
  ip -n gw route add 10.20.0.0/24 via 10.255.0.2
  ip -n branch route add 192.168.1.0/24 via 10.255.0.1
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A OUTPUT -p icmp --icmp-type echo-reply -j ACCEPT
-A OUTPUT -p icmp --icmp-type echo-request -j ACCEPT
-A OUTPUT -p icmp -j DROP
EOF
  serve tcp server 445
  ask bpc tcp 192.168.1.10 445 3 down=80000
  ask bpc tcp 192.168.1.10 445 2
}

guest-wifi-no-snat() {
  fault "the new guest WLAN has no internet; the office LAN has" "masquerade is limited to 192.168.1.0/24; the guests' 192.168.2.0/24 leave wan0 untranslated and no answer comes back"
  typical
  node phone
  link gw guest0 192.168.2.1/24 phone eth0 192.168.2.50/24
  default phone 192.168.2.1
  ruleset <<'EOF'
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat;
    oifname "wan0" ip saddr 192.168.1.0/24 counter masquerade; }
}
table ip filter {
  chain forward { type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname { "lan0", "guest0" } oifname "wan0" accept; }
}
EOF
  serve tcp client 443
  ask phone tcp 198.51.100.10 443 4
  ask phone ping 198.51.100.10 - 1
  ask pc tcp 198.51.100.10 443 4
}

mail-by-line-2() {
  fault "the mail server cannot deliver: all connections to port 25 time out" "strict rp_filter: mail is sent by line 2 by fwmark; the answers come in by wan1 without the mark, the main table says wan0 for that source, they are dropped"
  two_uplinks
  ip -n gw route add default via 203.0.113.1 table 2
  ip -n gw rule add fwmark 2 lookup 2
  set_ gw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.wan0.rp_filter=1 net.ipv4.conf.wan1.rp_filter=1
  rules <<'EOF'
-t mangle -A PREROUTING -i lan0 -s 192.168.1.10 -p tcp --dport 25 -j MARK --set-mark 2
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp inet 25
  serve tcp inet 443
  ask server tcp 198.51.100.10 25 3
  ask pc tcp 198.51.100.10 443 4
}

quic-second-line() {
  fault "HTTP/3 (udp 443) by the second line's address gets no answer; TCP by the first does" "asymmetric routing: the answers to what came in by wan1 leave by the default route wan0 with the address 203.0.113.2, and provider 1 drops foreign sources; no rule sends them back by wan1"
  two_uplinks
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan1 -p udp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp server 443
  serve udp server 443
  ask inet tcp 192.0.2.2 443 3
  ask inet udp 203.0.113.2 443 8 up=1200
}

docker-user-answers() {
  fault "containers have no internet (apt, webhooks, registry all time out); visitors from the allowed office are served" "DOCKER-USER drops all that comes in by wan0 and is not from 203.0.113.0/24: also the answers to the containers' own connections, as there is no ESTABLISHED rule before it"
  docker_host
  ip -n client addr add 203.0.113.10/24 dev eth0
  ip -n gw route add 203.0.113.0/24 via 198.51.100.10
  rules <<'EOF'
-A DOCKER-USER -i wan0 ! -s 203.0.113.0/24 -j DROP
-A DOCKER-USER -j RETURN
EOF
  serve tcp web 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 3 from=203.0.113.10
  ask web tcp 198.51.100.10 443 4
}

docker-and-firewalld() {
  fault "the published port 8080 does not answer anybody: no route to host or a timeout" "a second firewall: the table inet firewalld's forward chain (priority filter+10) rejects what no zone allows; that Docker's iptables chains accept it first does not count"
  docker_host
  ruleset <<'EOF'
table inet firewalld {
  chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
    ct state { established, related } accept
    iifname "lo" accept
    jump filter_FORWARD_ZONES
    ct state invalid drop
    reject with icmpx admin-prohibited; }
  chain filter_FORWARD_ZONES { iifname "docker0" accept
    iifname "wan0" goto filter_FWD_public; }
  chain filter_FWD_public { ip protocol icmp accept
    ct state new reject with icmpx admin-prohibited; }
  chain filter_INPUT { type filter hook input priority filter + 10; policy accept;
    ct state { established, related } accept
    tcp dport { 22, 8080 } accept; }
}
EOF
  serve tcp web 80
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 5
  ask web tcp 198.51.100.10 443 2
}

compose-recreated() {
  fault "the shop on port 443 refuses connections since the last compose up" "a DNAT rule written by hand leads to 172.18.0.3:8443, which is now redis; the shop got 172.18.0.4"
  outside_gw
  gw_bridge br-3f1c9a 172.18.0.1/16
  gw_guest redis br-3f1c9a 172.18.0.3/16 172.18.0.1
  gw_guest shop br-3f1c9a 172.18.0.4/16 172.18.0.1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 172.18.0.3:8443
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 172.18.0.4:8080
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-3f1c9a -j MASQUERADE
EOF
  serve tcp shop 8443
  serve tcp shop 8080
  serve tcp redis 6379
  ask client tcp 198.51.100.1 443 6
  ask client tcp 198.51.100.1 80 3
  ask shop tcp 172.18.0.3 6379 5
}

kube-onprem-db() {
  fault "pods cannot reach the database 10.50.0.10 in the data centre; internet works" "ip-masq-agent does not masquerade to 10.0.0.0/8: packets leave with pod addresses 10.244.1.x, for which the data centre has no route"
  kube_node
  node db
  ip -n rtr route del blackhole 10.0.0.0/8
  link rtr dc0 10.50.0.1/24 db eth0 10.50.0.10/24
  default db 10.50.0.1
  ip -n gw route add 10.244.2.0/24 via 198.51.100.2
  rules <<'EOF'
-t nat -N IP-MASQ-AGENT
-t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
-t nat -A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN
-t nat -A IP-MASQ-AGENT -d 172.16.0.0/12 -j RETURN
-t nat -A IP-MASQ-AGENT -d 192.168.0.0/16 -j RETURN
-t nat -A IP-MASQ-AGENT -d 169.254.0.0/16 -j RETURN
-t nat -A IP-MASQ-AGENT -j MASQUERADE
EOF
  serve tcp db 5432
  serve tcp client 443
  ask p1 tcp 10.50.0.10 5432 5
  ask p2 tcp 198.51.100.10 443 4
  ask client tcp 198.51.100.1 30080 3
}

kube-node-route() {
  fault "a third of the requests to NodePort 30080 time out" "the gateway has no route to node2's pods 10.244.2.0/24 (the CNI did not install it): DNAT to 10.244.2.10 leaves by the default route and is lost in the router"
  kube_node
  ask client tcp 198.51.100.1 30080 30
}

libvirt-reject-first() {
  fault "ssh to the VM by the forwarded port 2222 is refused (or times out)" "libvirt's LIBVIRT_FWI rejects new connections to virbr0 before the admin's own ACCEPT, appended to FORWARD, is reached"
  outside_gw
  gw_bridge virbr0 192.168.122.1/24
  gw_guest vm virbr0 192.168.122.10/24 192.168.122.1
  rules <<'EOF'
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-N LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A FORWARD -d 192.168.122.10/32 -p tcp --dport 22 -j ACCEPT
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWX -i virbr0 -o virbr0 -j ACCEPT
-t nat -A PREROUTING -d 198.51.100.1/32 -p tcp --dport 2222 -j DNAT --to-destination 192.168.122.10:22
-t nat -A POSTROUTING -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
EOF
  serve tcp vm 22
  serve tcp client 443
  ask client tcp 198.51.100.1 2222 2
  ask vm tcp 198.51.100.10 443 3
}

lxc-bridge-filtered() {
  fault "the containers cannot talk to each other (web to its database) since Docker was installed; web is reached from outside" "br_netfilter: bridge-nf-call-iptables=1 sends what lxcbr0 bridges through FORWARD, whose policy is DROP; the accept rules name only lxcbr0 to other interfaces"
  outside_gw
  gw_bridge lxcbr0 10.0.3.1/24
  gw_guest web lxcbr0 10.0.3.10/24 10.0.3.1
  gw_guest db lxcbr0 10.0.3.11/24 10.0.3.1
  set_ gw net.bridge.bridge-nf-call-iptables=1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lxcbr0 ! -o lxcbr0 -j ACCEPT
-A FORWARD -o lxcbr0 -i wan0 -p tcp --dport 80 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 10.0.3.10
-t nat -A POSTROUTING -s 10.0.3.0/24 ! -d 10.0.3.0/24 -j MASQUERADE
EOF
  serve tcp web 80
  serve tcp db 3306
  ask client tcp 198.51.100.1 80 4
  ask web tcp 10.0.3.11 3306 6
}

pihole-loop() {
  fault "no name resolves in the house" "the rule that sends all DNS of the LAN to the Pi-hole 192.168.1.53 also catches the Pi-hole's own queries to its upstream and leads them back to itself"
  typical
  node pihole
  plug lan pihole eth0 192.168.1.53/24
  default pihole 192.168.1.1
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat;
    iifname "lan0" ip daddr != 192.168.1.53 udp dport 53 dnat to 192.168.1.53
    iifname "lan0" ip daddr != 192.168.1.53 tcp dport 53 dnat to 192.168.1.53; }
  chain postrouting { type nat hook postrouting priority srcnat;
    ip saddr 192.168.1.0/24 ip daddr 192.168.1.53 udp dport 53 masquerade
    oifname "wan0" masquerade; }
}
EOF
  serve udp client 53
  serve tcp client 443
  serve udp pihole 53 answer=no
  ask pihole udp 198.51.100.10 53 6 port=5335
  ask pc udp 198.51.100.10 53 3
  ask pc tcp 198.51.100.10 443 2
}

lxd-forwarding-off() {
  fault "LXD containers have no internet since the upgrade of systemd; the LAN behind the same host has" "net.ipv4.conf.lxdbr0.forwarding=0: networkd switched forwarding off for that interface, what comes in by it is not forwarded"
  typical
  gw_bridge lxdbr0 10.146.5.1/24
  gw_guest c1 lxdbr0 10.146.5.20/24 10.146.5.1
  set_ gw net.ipv4.conf.lxdbr0.forwarding=0
  ruleset <<'EOF'
table inet lxd {
  chain pstrt.lxdbr0 { type nat hook postrouting priority srcnat; policy accept;
    ip saddr 10.146.5.0/24 ip daddr != 10.146.5.0/24 masquerade; }
  chain fwd.lxdbr0 { type filter hook forward priority filter; policy accept;
    oifname "lxdbr0" accept
    iifname "lxdbr0" accept; }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" ip saddr 192.168.1.0/24 masquerade; }
}
EOF
  serve tcp client 443
  ask c1 tcp 198.51.100.10 443 4
  ask pc tcp 198.51.100.10 443 4
}

legacy-nat-left() {
  fault "https to the new server does not work (no route to host), although iptables -t nat -L shows the right rule" "rules of iptables-legacy are still loaded (by the old rc.local, last, so its nat PREROUTING comes first): they send port 443 to the old server 192.168.1.9, which is gone"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  # rc.local, after netfilter-persistent
  gw iptables-legacy -t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.9
  gw iptables-legacy -t nat -A POSTROUTING -o wan0 -j MASQUERADE
  serve tcp server 443
  serve tcp server 80
  ask client tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.1 80 3
}

cgn-port-block() {
  fault "subscriber 100.64.0.10: pages half load, most new TCP connections time out when the household is busy; others are fine" "SNAT gives this subscriber a block of 64 ports only; they are all in use, no port is left to the same server"
  cgn_box
  ip -n core route add 203.0.113.0/29 via 192.0.2.2
  rules <<'EOF'
-t nat -A POSTROUTING -o core0 -s 100.64.0.10/32 -p tcp -j SNAT --to-source 203.0.113.1:1024-1087
-t nat -A POSTROUTING -o core0 -s 100.64.0.11/32 -p tcp -j SNAT --to-source 203.0.113.1:1088-2111
-t nat -A POSTROUTING -o core0 -s 100.64.0.0/24 -j SNAT --to-source 203.0.113.1
EOF
  serve tcp inet 443
  ask sub tcp 198.51.100.10 443 30 from=100.64.0.10 requests=2 gap=25 after=0.1
  ask sub tcp 198.51.100.10 443 3 from=100.64.0.11
  sleep 4
}

db-session-idle() {
  fault "database sessions of the office hang when they were idle for some seconds, new ones work" "nf_conntrack_tcp_timeout_established=4: the entry of an idle session is gone, its next packet is NEW without SYN and is dropped in FORWARD"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=4
  rules <<'EOF'
-A FORWARD -p tcp ! --syn -m conntrack --ctstate NEW -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-P FORWARD DROP
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp client 5432
  serve tcp client 443
  ask pc tcp 198.51.100.10 5432 4 requests=3 gap=7 after=0.1
  ask pc tcp 198.51.100.10 443 2
  sleep 9
}

cgn-pool-half-routed() {
  fault "some subscribers have no internet at all, others are fine" "half of the SNAT pool (203.0.113.6 and .7) is not routed back: the core has a route for 203.0.113.4/31 only"
  cgn_box
  ip -n core route add 203.0.113.4/31 via 192.0.2.2
  ip -n core route add blackhole 203.0.113.0/24
  ip -n gw route add blackhole 203.0.113.4/30
  ruleset <<'EOF'
table ip cgn {
  chain post { type nat hook postrouting priority srcnat;
    oifname "core0" ip saddr 100.64.0.0/10 snat to jhash ip saddr mod 4 seed 0x77 map {
      0 : 203.0.113.4, 1 : 203.0.113.5, 2 : 203.0.113.6, 3 : 203.0.113.7 }; }
}
EOF
  serve tcp inet 443
  serve udp inet 53
  local n
  for n in 10 11 12 13 14 15 16 17; do ask sub tcp 198.51.100.10 443 2 from=100.64.0.$n; done
}

rtp-range() {
  fault "calls are set up, but the callers are not heard: RTP from outside does not arrive" "only udp 10000:10999 is forwarded to the PBX, which uses ports up to 20000: the others end in INPUT, policy DROP"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p udp --dport 5060 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p udp --dport 10000:10999 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 5060
  serve udp server 13482
  serve udp server 17720
  ask client udp 198.51.100.1 5060 2 port=5060
  ask client udp 198.51.100.1 13482 20 port=18200 up=172 down=172
  ask client udp 198.51.100.1 17720 20 port=18300 up=172 down=172
}

pbx-moved() {
  fault "phones that were registered before the PBX moved get no answer, new ones do" "stale connection entry: the phones' UDP flow (5060 to 5060, refreshed by each packet) is still DNATed to the old PBX 192.168.1.9; the new rule is only for new flows"
  typical
  node phone2
  plug wan phone2 eth0 198.51.100.30/24
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp --dport 5060 -j DNAT --to-destination 192.168.1.9
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 5060
  ask client udp 198.51.100.1 5060 4 port=5060 after=0.1
  sleep 2
  rules <<'EOF'
-t nat -R PREROUTING 1 -i wan0 -p udp --dport 5060 -j DNAT --to-destination 192.168.1.10
EOF
  ask phone2 udp 198.51.100.1 5060 4 port=5060
}

game-flood-guard() {
  fault "players lag and are thrown out: most packets to the game server are lost" "the flood rule -m limit 10/s is for all players together, not for each: what exceeds it is dropped in FORWARD"
  typical
  rules <<'EOF'
-A FORWARD -i wan0 -p udp --dport 27015 -m limit --limit 10/sec --limit-burst 20 -j ACCEPT
-A FORWARD -i wan0 -p udp --dport 27015 -j DROP
-t nat -A PREROUTING -i wan0 -p udp --dport 27015 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 27015 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 27015
  serve tcp server 27015
  ask client udp 198.51.100.1 27015 25 port=40001
  ask client udp 198.51.100.1 27015 25 port=40002
  ask client tcp 198.51.100.1 27015 1
}

lb-backend-gateway() {
  fault "one request in three to the load balancer times out" "backend 192.168.1.12 has another default gateway (the old firewall 192.168.1.254): its answers do not come back through the load balancer"
  typical
  router oldfw
  node web3
  plug lan oldfw eth0 192.168.1.254/24
  plug lan web3 eth0 192.168.1.12/24
  default web3 192.168.1.254
  ip -n oldfw route add blackhole default
  ip -n server addr add 192.168.1.11/24 dev eth0
  ruleset <<'EOF'
table ip lb {
  chain pre { type nat hook prerouting priority dstnat;
    iifname "wan0" tcp dport 443 dnat to numgen inc mod 3 map { 0 : 192.168.1.10, 1 : 192.168.1.11, 2 : 192.168.1.12 }; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  serve tcp server 443
  serve tcp web3 443
  ask client tcp 198.51.100.1 443 12
}

lb-vip-missing() {
  fault "the new service address 198.51.100.100 is not reachable at all; the old one 198.51.100.99 works" "DNAT for 198.51.100.100 is in place, but the address is on no interface (it was left out of keepalived's virtual_ipaddress): nobody answers ARP for it on wan0"
  typical
  ip -n gw addr add 198.51.100.99/32 dev wan0
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.99/32 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A PREROUTING -d 198.51.100.100/32 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.99
EOF
  serve tcp server 443
  serve tcp server 8443
  ask client tcp 198.51.100.99 443 4
  ask client tcp 198.51.100.100 443 4
}

rdp-server-firewall() {
  fault "remote desktop by the forwarded port times out from outside, from the LAN it works" "the server's own firewall accepts 3389 only from 192.168.1.0/24; DNAT keeps the client's address, the server drops it silently"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 3389 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 33890 -j DNAT --to-destination 192.168.1.10:3389
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  on server iptables -A INPUT -p tcp --dport 3389 ! -s 192.168.1.0/24 -j DROP
  serve tcp server 3389
  serve tcp client 443
  ask client tcp 198.51.100.1 33890 2
  ask pc tcp 192.168.1.10 3389 3
  ask pc tcp 198.51.100.10 443 3
}

v6-input-drops-nd() {
  fault "IPv6 is dead in both directions, IPv4 works" "ip6tables INPUT policy DROP accepts of ICMPv6 only echo requests: neighbour solicitations and advertisements to the gateway are dropped, nobody learns its MAC address"
  typical 6
  rules <<'EOF'
-6 -P INPUT DROP
-6 -A INPUT -i lo -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A INPUT -p icmpv6 --icmpv6-type echo-request -j ACCEPT
-6 -A INPUT -p tcp --dport 22 -j ACCEPT
-6 -t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 bind=::
  serve tcp server 443
  serve tcp client 443 bind=::
  serve tcp client 443
  ask client tcp 2001:db8:2::10 443 3
  ask pc tcp 2001:db8:1::10 443 3
  ask pc tcp 198.51.100.10 443 3
  ask client tcp 198.51.100.1 443 2
}

v6-default-lost() {
  fault "the containers and the LAN have no IPv6 internet (network unreachable), IPv4 works" "the gateway has no IPv6 default route: with forwarding=1 and accept_ra=1 it ignores router advertisements; NAT66 has nothing to send"
  typical
  router isp
  node inet
  plug wan isp eth0 198.51.100.254/24,2001:db8:1::fe/64
  link isp net0 203.0.113.1/24,2001:db8:9::1/64 inet eth0 203.0.113.10/24,2001:db8:9::10/64
  default inet 203.0.113.1 2001:db8:9::1
  ip -n gw addr add 2001:db8:1::1/64 dev wan0
  ip -n gw addr add fd00:1::1/64 dev lan0
  ip -n pc addr add fd00:1::20/64 dev eth0
  ip -n pc route add default via fd00:1::1
  default gw 198.51.100.254
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A POSTROUTING -s fd00:1::/64 -o wan0 -j MASQUERADE
EOF
  serve tcp inet 443 bind=::
  serve tcp inet 443
  ask pc tcp 2001:db8:9::10 443 4
  ask pc tcp 203.0.113.10 443 4
}

ftp-lost-helper() {
  fault "FTP downloads from the office: login works, then every transfer hangs" "no FTP helper is assigned (automatic assignment is gone with the new kernel): the passive data connections are not RELATED and FORWARD's policy DROP takes them"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p tcp -m multiport --dports 21,80,443 -j ACCEPT
-A FORWARD -i lan0 -o wan0 -p icmp -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp client 21 bind=198.51.100.10
  serve tcp client 443
  ask pc ftp 198.51.100.10 21 2
  ask pc tcp 198.51.100.10 443 3
}

fail2ban-whole-net() {
  fault "customers of one provider (203.0.113.0/24) cannot reach the shop, all others can" "a blackhole route for 203.0.113.0/24 (banned by hand after an attack): their SYNs reach the server, the answers are dropped by the route"
  typical
  ip -n client addr add 203.0.113.10/24 dev eth0
  ip -n client addr add 203.0.113.77/24 dev eth0
  ip -n gw route add default via 198.51.100.10
  ip -n gw route add blackhole 203.0.113.0/24
  ip -n gw route add blackhole 192.0.2.66/32
  ip -n client route add 192.168.1.0/24 via 198.51.100.1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  ask client tcp 198.51.100.1 443 3 from=203.0.113.10
  ask client tcp 198.51.100.1 443 2 from=203.0.113.77
}

# ---- healthy ----

allowlist-and-scan() {
  healthy "RDP is forwarded for the office's address only; a scanner that tries it and closed ports is dropped on purpose"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 3389 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet filter {
  set office { type ipv4_addr; flags interval; elements = { 198.51.100.10, 203.0.113.0/28 } }
  chain forward { type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname "lan0" accept
    iifname "wan0" ip saddr @office tcp dport 3389 accept; }
  chain input { type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct state established,related accept
    iifname "lan0" accept; }
}
EOF
  serve tcp server 3389
  ask client tcp 198.51.100.1 3389 4
  ask scanner tcp 198.51.100.1 22 1
  ask scanner tcp 198.51.100.1 445 1
  ask scanner tcp 198.51.100.1 3389 1
}

backup-line-down() {
  healthy "the second line is unplugged (no carrier), its route, rules and NAT wait; all traffic goes by the first"
  two_uplinks
  ip -n gw route add default via 203.0.113.1 metric 200
  ip -n gw route add default via 203.0.113.1 table 2
  ip -n gw rule add from 203.0.113.2 lookup 2
  ip -n isp2 link set cpe down
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 192.0.2.2
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 203.0.113.2
EOF
  serve tcp server 443
  serve udp inet 53
  ask inet tcp 192.0.2.2 443 4
  ask pc udp 198.51.100.10 53 4
}

direct-server-return() {
  healthy "direct server return: the gateway sees only the clients' half of the connections to 203.0.113.80, the answers leave by another router"
  typical
  router exit
  plug wan exit wan0 198.51.100.254/24
  plug lan exit lan0 192.168.1.254/24
  ip -n server addr add 203.0.113.80/32 dev lo
  ip -n server route replace default via 192.168.1.254
  ip -n gw route add 203.0.113.80/32 via 192.168.1.10
  ip -n client route add 203.0.113.80/32 via 198.51.100.1
  rules <<'EOF'
-A FORWARD -d 203.0.113.80 -p tcp --dport 80 -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -s 192.168.1.0/24 -j ACCEPT
-P FORWARD DROP
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 203.0.113.80 80 6 down=20000
  ask pc tcp 198.51.100.10 443 3
}

shaped-line() {
  healthy "both directions are shaped (HTB, TBF) and full at times: some queue drops are how it works"
  typical
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 10mbit
  gw tc class add dev wan0 parent 1:1 classid 1:10 htb rate 2mbit ceil 10mbit prio 0
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 8mbit ceil 10mbit prio 1
  gw tc qdisc add dev wan0 parent 1:20 pfifo limit 60
  gw tc qdisc add dev lan0 root tbf rate 20mbit burst 64k latency 100ms
  rules <<'EOF'
-t mangle -A POSTROUTING -o wan0 -p icmp -j CLASSIFY --set-class 1:10
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 4 down=150000 timeout=8
  ask pc tcp 198.51.100.10 443 2 down=300000 timeout=8
  ask pc ping 198.51.100.10 - 2
}

tuned-timeouts() {
  healthy "short conntrack timeouts, loose tracking off, liberal windows: all fits the traffic"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=1800 net.netfilter.nf_conntrack_tcp_timeout_time_wait=5 \
    net.netfilter.nf_conntrack_tcp_timeout_close=2 net.netfilter.nf_conntrack_tcp_timeout_syn_sent=10 \
    net.netfilter.nf_conntrack_udp_timeout=10 net.netfilter.nf_conntrack_udp_timeout_stream=30 \
    net.netfilter.nf_conntrack_generic_timeout=30 net.netfilter.nf_conntrack_tcp_loose=0 \
    net.netfilter.nf_conntrack_tcp_be_liberal=1 net.netfilter.nf_conntrack_icmp_timeout=3
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE --random
EOF
  serve tcp server 80
  serve udp client 53
  serve tcp client 443
  ask client tcp 198.51.100.1 80 30
  ask pc udp 198.51.100.10 53 10
  ask pc tcp 198.51.100.10 443 2 requests=5 gap=1.5
}

syslog-collector() {
  healthy "syslog and NetFlow come in by DNAT and are never answered: that is how these protocols are"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p udp --dport 514 -j DNAT --to-destination 192.168.1.10:1514
-t nat -A PREROUTING -i wan0 -p udp --dport 2055 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 1514 answer=no
  serve udp server 2055 answer=no
  serve tcp server 443
  ask client udp 198.51.100.1 514 20 answer=no up=300
  ask client udp 198.51.100.1 2055 5 answer=no up=1400 port=9995
  ask client tcp 198.51.100.1 443 3
}

checks-and-quitters() {
  healthy "a monitor that only connects and resets, and browsers that abort after the answer"
  typical
  node monitor
  plug wan monitor eth0 198.51.100.40/24
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -m conntrack --ctstate INVALID -j DROP
EOF
  serve tcp server 443
  ask monitor tcp 198.51.100.1 443 5 requests=0 abort=1
  ask client tcp 198.51.100.1 443 6 abort=1 down=30000
  ask client tcp 198.51.100.1 443 3
}

script-run-twice() {
  healthy "the firewall script was run twice and an old rule stays below: duplicates and a DNAT to a dead server that are never reached"
  typical
  local twice
  for _ in 1 2; do
    rules <<'EOF'
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 80 -j ACCEPT
-A FORWARD -i wan0 -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  done
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.77
-t nat -A PREROUTING -i wan0 -p tcp --dport 8081 -j DNAT --to-destination 192.168.1.78
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 198.51.100.9
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 5
  ask pc tcp 198.51.100.10 443 4
}

port-knocking() {
  healthy "ssh is forwarded to who has knocked at port 7000; knocks are dropped as meant, as are those that did not knock"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  rules <<'EOF'
-t mangle -A PREROUTING -i wan0 -p tcp --dport 7000 -m recent --name knock --set -j DROP
-t mangle -A PREROUTING -i wan0 -p tcp --dport 22 -m conntrack --ctstate NEW -m recent --name knock ! --rcheck --seconds 30 -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 22 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 22
  ask client tcp 198.51.100.1 7000 0.5 timeout=0.5 after=0
  ask client tcp 198.51.100.1 22 2 after=1
  ask scanner tcp 198.51.100.1 22 1
}

limits-that-wait() {
  healthy "rate and connection limits per client, far above what the clients do"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet guard {
  set many { type ipv4_addr; size 65535; flags dynamic; }
  set fast { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }
  chain forward { type filter hook forward priority filter - 5; policy accept;
    iifname "wan0" ct state new add @many { ip saddr ct count over 400 } counter drop
    iifname "wan0" ct state new update @fast { ip saddr limit rate over 200/second burst 100 packets } counter drop
    iifname "wan0" icmp type echo-request limit rate over 20/second drop; }
}
EOF
  serve tcp server 80
  serve tcp server 443
  ask client tcp 198.51.100.1 443 20
  ask client tcp 198.51.100.1 80 10
  ask client ping 198.51.100.1 - 2
}

bogon-blackholes() {
  healthy "private networks are blackholed on purpose; a laptop that looks for its home server 10.99.0.5 gets nothing, as meant"
  typical
  node laptop
  plug lan laptop eth0 192.168.1.30/24
  default laptop 192.168.1.1
  default gw 198.51.100.10
  ip -n gw route add blackhole 10.0.0.0/8
  ip -n gw route add blackhole 172.16.0.0/12
  ip -n gw route add unreachable 192.168.0.0/16
  ip -n gw route add prohibit 100.64.0.0/10
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 4
  ask pc tcp 198.51.100.10 443 4
  ask laptop tcp 198.51.100.10 443 2
  ask laptop tcp 10.99.0.5 445 0.5
}

docker-two-networks() {
  healthy "a Docker host with an empty network without carrier, isolation drops at 0, and an ssh brute-forcer that INPUT drops"
  docker_host
  gw_guest db docker0 172.17.0.3/16 172.17.0.1
  gw_bridge br-90ab12 172.19.0.1/16
  rules <<'EOF'
-A DOCKER-USER -j RETURN
-I DOCKER-ISOLATION-STAGE-1 1 -i br-90ab12 ! -o br-90ab12 -j DOCKER-ISOLATION-STAGE-2
-I DOCKER-ISOLATION-STAGE-2 1 -o br-90ab12 -j DROP
-t nat -I POSTROUTING 1 -s 172.19.0.0/16 ! -o br-90ab12 -j MASQUERADE
-A INPUT -i wan0 -p tcp --dport 22 -j DROP
EOF
  serve tcp web 80
  serve tcp db 5432
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 6
  ask web tcp 172.17.0.3 5432 6
  ask web tcp 198.51.100.10 443 3
  ask client tcp 198.51.100.1 22 1
}

kube-node-busy() {
  healthy "a Kubernetes node: a service without endpoints that nobody calls (REJECT), session affinity, pods on another node"
  kube_node
  ip -n gw route add 10.244.2.0/24 via 198.51.100.2
  rules <<'EOF'
-N KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A KUBE-EXTERNAL-SERVICES -p tcp -m addrtype --dst-type LOCAL --dport 30999 -j REJECT
-N KUBE-FIREWALL
-A INPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-t nat -A POSTROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-t nat -N KUBE-SVC-DB
-t nat -N KUBE-SEP-DB
-t nat -I KUBE-SERVICES 1 -d 10.96.0.60/32 -p tcp --dport 5432 -j KUBE-SVC-DB
-t nat -A KUBE-SVC-DB -m recent --name KUBE-SEP-DB --rcheck --seconds 10800 --reap --rsource -j KUBE-SEP-DB
-t nat -A KUBE-SVC-DB -j KUBE-SEP-DB
-t nat -A KUBE-SEP-DB -p tcp -m recent --name KUBE-SEP-DB --set --rsource -j DNAT --to-destination 10.244.2.10:5432
EOF
  serve tcp p3 5432
  ask client tcp 198.51.100.1 30080 20
  ask p1 tcp 10.96.0.60 5432 4
  ask p2 tcp 10.96.0.50 80 6
}

cgn-ordinary() {
  healthy "a provider's NAT with port blocks and a pool, unsolicited packets from outside are dropped, one subscriber has static mapping"
  cgn_box
  ip -n core route add 203.0.113.0/29 via 192.0.2.2
  ip -n gw route add blackhole 203.0.113.0/29
  rules <<'EOF'
-t nat -A PREROUTING -i core0 -d 203.0.113.6/32 -j DNAT --to-destination 100.64.0.17
-t nat -A POSTROUTING -o core0 -s 100.64.0.17/32 -j SNAT --to-source 203.0.113.6
-t nat -A POSTROUTING -o core0 -s 100.64.0.10/32 -p tcp -j SNAT --to-source 203.0.113.1:1024-3071
-t nat -A POSTROUTING -o core0 -s 100.64.0.11/32 -p tcp -j SNAT --to-source 203.0.113.1:3072-5119
-t nat -A POSTROUTING -o core0 -s 100.64.0.0/24 -j SNAT --to-source 203.0.113.2-203.0.113.5 --random-fully --persistent
-A FORWARD -i core0 -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j DROP
EOF
  serve tcp inet 443
  serve udp inet 53
  serve tcp sub 8000
  ask sub tcp 198.51.100.10 443 20 from=100.64.0.10
  ask sub tcp 198.51.100.10 443 6 from=100.64.0.11
  ask sub udp 198.51.100.10 53 8 from=100.64.0.12
  ask sub tcp 198.51.100.10 443 3 from=100.64.0.13
  ask inet tcp 203.0.113.6 8000 3
  ask inet tcp 203.0.113.1 23 1
}

nptv6-works() {
  healthy "NPTv6: the prefix is translated without connection state, ping to the gateway itself is dropped"
  router gw
  node client pc
  link client eth0 2001:db8:1::10/64 gw wan0 2001:db8:1::1/64
  link gw lan0 fd00:aaaa:bbbb:1::1/64 pc eth0 fd00:aaaa:bbbb:1::20/64
  default client 2001:db8:1::1
  default pc fd00:aaaa:bbbb:1::1
  rules <<'EOF'
-6 -t mangle -A POSTROUTING -s fd00:aaaa:bbbb:1::/64 -o wan0 -j SNPT --src-pfx fd00:aaaa:bbbb:1::/64 --dst-pfx 2001:db8:77:1::/64
-6 -t mangle -A PREROUTING -d 2001:db8:77:1::/64 -i wan0 -j DNPT --src-pfx 2001:db8:77:1::/64 --dst-pfx fd00:aaaa:bbbb:1::/64
-6 -t raw -A PREROUTING -j CT --notrack
-6 -A INPUT -p icmpv6 --icmpv6-type echo-request -j DROP
EOF
  serve tcp client 443 bind=::
  serve udp client 53 bind=::
  ask pc tcp 2001:db8:1::10 443 5
  ask pc udp 2001:db8:1::10 53 5
  ask client ping 2001:db8:1::1 - 1
}

vrrp-master() {
  healthy "the master of a VRRP pair: the service address is on a macvlan with a virtual MAC address, the backup is silent"
  typical
  node lb2
  plug wan lb2 eth0 198.51.100.3/24
  gw ip link add vrrp.51 link wan0 address 00:00:5e:00:01:33 type macvlan mode private
  ip -n gw addr add 198.51.100.100/32 dev vrrp.51
  ip -n gw link set vrrp.51 up
  set_ gw net.ipv4.conf.wan0.arp_ignore=1 net.ipv4.conf.wan0.arp_filter=1 net.ipv4.conf.wan0.rp_filter=2
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.100 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.100 -p udp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 198.51.100.100
-A INPUT -p vrrp -j ACCEPT
EOF
  serve tcp server 443
  serve udp server 443
  serve tcp client 80
  ask client tcp 198.51.100.100 443 6
  ask client udp 198.51.100.100 443 6 up=1200 down=1200
  ask pc tcp 198.51.100.10 80 3
}

two-lines-by-mark() {
  healthy "two lines, answers go back by the line they came from (connmark), mail leaves by line 2, rp_filter loose"
  two_uplinks
  ip -n gw route add default via 192.0.2.1 table 1
  ip -n gw route add default via 203.0.113.1 table 2
  ip -n gw rule add pref 1001 fwmark 1 lookup 1
  ip -n gw rule add pref 1002 fwmark 2 lookup 2
  set_ gw net.ipv4.conf.all.rp_filter=2
  rules <<'EOF'
-t mangle -A PREROUTING -i wan0 -m conntrack --ctstate NEW -j CONNMARK --set-mark 1
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -p tcp --dport 25 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp inet 25
  serve tcp inet 80
  ask inet tcp 192.0.2.2 443 4
  ask inet tcp 203.0.113.2 443 4
  ask server tcp 198.51.100.10 25 3
  ask pc tcp 198.51.100.10 80 3
}

ips-queue-bypass() {
  healthy "everything forwarded goes to NFQUEUE 0 with bypass, and no IPS runs: packets pass"
  typical
  rules <<'EOF'
-t mangle -A FORWARD -j NFQUEUE --queue-num 0 --queue-bypass
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -p tcp --dport 25 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 25
  serve tcp client 443
  ask client tcp 198.51.100.1 25 5
  ask pc tcp 198.51.100.10 443 5
}

stray-packets() {
  healthy "stray ACKs and SYN-ACKs (backscatter) from outside are dropped as INVALID; service and LAN are fine"
  typical
  node noise
  plug wan noise eth0 198.51.100.66/24
  set_ gw net.netfilter.nf_conntrack_tcp_loose=0
  rules <<'EOF'
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A INPUT -i wan0 -m conntrack --ctstate NEW -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  on noise python3 - 2>/dev/null <<'EOF' &
import socket, struct, random, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
src, dst = socket.inet_aton("198.51.100.66"), socket.inet_aton("198.51.100.1")
def csum(b):
    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
for i in range(600):
    flags = random.choice((0x10, 0x12, 0x11))
    h = lambda c: struct.pack("!HHLLBBHHH", random.Random(i).randrange(1024, 60000), random.Random(-i).choice((443, 33000, 41000)), i * 7919, 99, 5 << 4, flags, 1000, c, 0)
    c = csum(src + dst + struct.pack("!BBH", 0, 6, 20) + h(0))
    s.sendto(h(c), ("198.51.100.1", 0))
    time.sleep(0.1)
EOF
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.51.100.1 443 5
  ask pc tcp 198.51.100.10 80 4
}

dns-for-all() {
  healthy "all DNS of the LAN is led to the Pi-hole, but for the Pi-hole's own; hairpin by masquerade; DNS over TLS is rejected"
  typical
  node pihole
  plug lan pihole eth0 192.168.1.53/24
  default pihole 192.168.1.1
  rules <<'EOF'
-t nat -A PREROUTING -i lan0 -s 192.168.1.53 -j RETURN
-t nat -A PREROUTING -i lan0 ! -d 192.168.1.53 -p udp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A PREROUTING -i lan0 ! -d 192.168.1.53 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.53
-t nat -A POSTROUTING -o lan0 -s 192.168.1.0/24 -d 192.168.1.53 -p udp --dport 53 -j MASQUERADE
-t nat -A POSTROUTING -o lan0 -s 192.168.1.0/24 -d 192.168.1.53 -p tcp --dport 53 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -i lan0 -o wan0 -p tcp --dport 853 -j REJECT --reject-with tcp-reset
EOF
  serve udp client 53
  serve udp pihole 53
  serve tcp client 443
  ask pihole udp 198.51.100.10 53 5
  ask pc udp 198.51.100.77 53 5
  ask pc tcp 198.51.100.10 853 0.5
  ask pc tcp 198.51.100.10 443 3
}
