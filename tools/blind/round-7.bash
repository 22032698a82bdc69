# shellcheck shell=bash
# Round 7: office and branch routers, VPN gateways, provider lines, machines with guests.

# typical, and a provider 198.51.100.254 who lets pass only his customers' addresses, and web 203.0.113.10 behind him
with_isp() {
  typical
  router isp
  node web
  switch net
  plug wan isp cust 198.51.100.254/24
  plug net isp net0 203.0.113.1/24
  plug net web eth0 203.0.113.10/24
  default web 203.0.113.1
  default gw 198.51.100.254
  default client 198.51.100.254
  on isp iptables -w -A FORWARD -i cust ! -s 198.51.100.0/24 -j DROP
}
# with_isp, and a second line: wan1 192.0.2.1 of gw, provider isp2 192.0.2.254
with_two_lines() {
  with_isp
  router isp2
  link gw wan1 192.0.2.1/24 isp2 cust 192.0.2.254/24
  plug net isp2 net0 203.0.113.2/24
  ip -n web route add 192.0.2.0/24 via 203.0.113.2
  on isp2 iptables -w -A FORWARD -i cust ! -s 192.0.2.0/24 -j DROP
}
# with_isp, and a tunnel tun0 10.255.0.2 – 10.255.0.1 to the head office hq, whose server files is FILES; hq lets in SOURCES
with_hq() { # FILES/LENGTH ROUTER-THERE/LENGTH SOURCES
  with_isp
  router hq
  node files
  plug net hq eth0 203.0.113.20/24
  default hq 203.0.113.1
  link hq lan "$2" files eth0 "$1"
  default files "${2%/*}"
  ip -n gw link add tun0 mtu 1400 type vxlan id 42 dstport 4789 local 198.51.100.1 remote 203.0.113.20
  ip -n hq link add tun0 mtu 1400 type vxlan id 42 dstport 4789 local 203.0.113.20 remote 198.51.100.1
  address gw tun0 10.255.0.2/30
  address hq tun0 10.255.0.1/30
  on hq iptables -w -A FORWARD -i tun0 ! -s "$3" -j DROP
}
# with_isp, and guests vm1… NET.11… at a bridge of gw's
with_guests() { # BRIDGE NET COUNT
  with_isp
  ip -n gw link add "$1" up type bridge
  ip -n gw addr add "$2.1/24" dev "$1"
  set_ gw net.bridge.bridge-nf-call-{ip,ip6,arp}tables=0
  local i
  for ((i = 1; i <= $3; i++)); do
    node "vm$i"
    link gw "vnet$i" - "vm$i" eth0 "$2.1$i/24"
    ip -n gw link set "vnet$i" master "$1"
    default "vm$i" "$2.1"
  done
}

mail-submission() {
  fault "mail programs outside cannot send (587, 25): connections time out; webmail works" "filter: FORWARD policy DROP; the rule for 25 and 587 accepts -d 198.51.100.1, the address before DNAT, and never matches: should be 192.168.1.10"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 443 -j ACCEPT
-A FORWARD -i wan0 -d 198.51.100.1 -p tcp -m multiport --dports 25,587 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 25,443,587 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  for port in 25 443 587; do serve tcp server $port; done
  ask client tcp 198.51.100.1 443 3
  ask client tcp 198.51.100.1 587 4
  ask client tcp 198.51.100.1 25 2
  ask pc ping 198.51.100.10 - 1
}

vm-shop-refused() {
  fault "the shop on a virtual machine is refused (or, as refusals are few, times out) from outside; the machine itself reaches the Internet" "filter of the host: libvirt's LIBVIRT_FWI REJECTs what goes to virbr0; the admin's ACCEPT for DNAT was appended behind it"
  with_guests virbr0 192.168.122 2
  rules <<'EOF'
-N LIBVIRT_FWX
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-A FORWARD -j LIBVIRT_FWX
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWX -i virbr0 -o virbr0 -j ACCEPT
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -d 192.168.122.11 -p tcp --dport 443 -j ACCEPT
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.122.11:443
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
EOF
  serve tcp vm1 443 && serve tcp web 80
  ask web tcp 198.51.100.1 443 6
  ask vm1 tcp 203.0.113.10 80 2
  ask vm2 tcp 203.0.113.10 80 2
}

containers-silent() {
  fault "containers reach nothing outside and their published site is silent; the office network works" "routing of gw: net.ipv4.conf.lxcbr0.forwarding is 0 (networkd's IPForward=no for that interface): what comes in from the containers is not forwarded"
  with_guests lxcbr0 10.0.3 2
  ruleset <<'EOF'
table ip lxc {
  chain pre { type nat hook prerouting priority dstnat; ip daddr 198.51.100.1 tcp dport 8443 dnat to 10.0.3.11:443; }
  chain post { type nat hook postrouting priority srcnat; ip saddr 10.0.3.0/24 ip daddr != 10.0.3.0/24 masquerade; }
  chain lan { type nat hook postrouting priority srcnat; ip saddr 192.168.1.0/24 oifname wan0 masquerade; }
}
EOF
  set_ gw net.ipv4.conf.lxcbr0.forwarding=0
  serve tcp vm1 443 && serve tcp web 443 && serve udp web 53
  ask vm1 tcp 203.0.113.10 443 2
  ask vm2 udp 203.0.113.10 53 3
  ask web tcp 198.51.100.1 8443 3
  ask pc tcp 203.0.113.10 443 3
}

new-floor-offline() {
  fault "PCs of the new floor get no Internet; the old floor does" "NAT of gw: masquerade is only for 192.168.1.0/24; 192.168.2.0/24 leaves untranslated and the provider drops it"
  with_isp
  node desk
  link gw lan1 192.168.2.1/24 desk eth0 192.168.2.30/24
  default desk 192.168.2.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i lan1 -o wan0 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp web 443 && serve udp web 53
  ask pc tcp 203.0.113.10 443 3
  ask desk tcp 203.0.113.10 443 3
  ask desk udp 203.0.113.10 53 2
}

office-offline-new-address() {
  fault "nobody in the office gets answers from the Internet since the provider changed the address" "NAT of gw: an iptables-legacy rule of the old rc.local still does SNAT to the former address 198.51.100.77 before the (right) masquerade of iptables-nft is asked; answers go to an address nobody has"
  with_isp
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  gw iptables-legacy -t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 198.51.100.77
  serve tcp web 443 && serve udp web 53 && serve tcp server 443
  ask pc tcp 203.0.113.10 443 4
  ask pc udp 203.0.113.10 53 4
  ask server tcp 203.0.113.10 443 1
  ask web tcp 198.51.100.1 443 2
}

portal-from-inside() {
  fault "staff inside cannot open the company's portal by its public name; customers can" "NAT of gw: DNAT takes the PCs' connections back into the LAN, but nothing translates their source there (hairpin): the server answers the PC directly, from an address it did not ask"
  typical
  ruleset <<'EOF'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; ct status dnat accept; iifname lan0 accept; }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; ip daddr 198.51.100.1 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443 && serve tcp server 80
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 198.51.100.1 443 4
}

long-reports-hang() {
  fault "the report page opens, but long reports hang for outside users" "filter of gw: -A FORWARD -p icmp -j DROP also drops the provider's 'fragmentation needed' (a link of 1400 behind him) to the server, which goes on sending packets of 1500"
  with_isp
  router core
  node remote
  link isp far 192.0.2.1/30 core near 192.0.2.2/30
  link core lan 203.0.113.129/26 remote eth0 203.0.113.130/26
  ip -n isp link set far mtu 1400 && ip -n core link set near mtu 1400
  ip -n isp route add 203.0.113.128/26 via 192.0.2.2
  default core 192.0.2.1 && default remote 203.0.113.129
  rules <<'EOF'
-A FORWARD -p icmp -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -m conntrack ! --ctstate DNAT -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask remote tcp 198.51.100.1 443 3
  ask remote tcp 198.51.100.1 443 5 down=60000
}

second-line-login() {
  fault "the login page on the second line's address times out; on the first line's it works" "routing of gw: rp_filter=1 on wan1; the sender's route (main table) is by wan0, so what comes in by wan1 is dropped as martian/RPF, in spite of the right rule and table for answers"
  with_two_lines
  set_ gw net.ipv4.conf.{all,wan0,wan1}.rp_filter=1
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -m connmark --mark 2 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 192.0.2.1
EOF
  ip -n gw route add default via 192.0.2.254 table 2
  ip -n gw rule add fwmark 2 lookup 2
  ip -n gw rule add from 192.0.2.1 lookup 2
  serve tcp server 443 && serve tcp web 80
  ask web tcp 198.51.100.1 8443 3
  ask web tcp 192.0.2.1 8443 5
  ask pc tcp 203.0.113.10 80 2
}

branch-file-server() {
  fault "the branch cannot reach the head office's file server through the tunnel; the Internet works" "NAT of gw: MASQUERADE for 192.168.1.0/24 has no -o and no exception for 10.20.0.0/24: in the tunnel the branch's PCs come as 10.255.0.2, which the head office drops"
  with_hq 10.20.0.10/24 10.20.0.1/24 192.168.1.0/24
  ip -n gw route add 10.20.0.0/24 via 10.255.0.1
  ip -n hq route add 192.168.1.0/24 via 10.255.0.2
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
-t mangle -A FORWARD -o tun0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp files 445 && serve tcp web 443
  ask pc tcp 10.20.0.10 445 4
  ask server tcp 10.20.0.10 445 2
  ask pc tcp 203.0.113.10 443 3
}

roadwarrior-shares() {
  fault "VPN users get the Internet through the office, but not the office's file server" "behind gw: 192.168.1.10 has another default router (192.168.1.254), which knows no way to 10.8.0.0/24: its answers are lost there; gw has neither masquerade for that way, nor a route on the server"
  with_isp
  router oldbox
  node rw
  plug lan oldbox lan 192.168.1.254/24
  ip -n server route replace default via 192.168.1.254
  ip -n oldbox route add unreachable default
  link gw tun0 10.8.0.1/24 rw tun0 10.8.0.6/24
  default rw 10.8.0.1
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i tun0 -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A POSTROUTING -s 10.8.0.0/24 -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp server 445 && serve tcp pc 9100 && serve tcp web 443
  ask rw tcp 192.168.1.10 445 5
  ask rw tcp 192.168.1.20 9100 1
  ask rw tcp 203.0.113.10 443 2
}

terminal-sessions-freeze() {
  fault "terminal sessions freeze after a short pause; those who type on are fine" "connection tracking of gw: established times out after 4 s, tcp_loose is 0 and the filter drops invalid packets: what follows a pause belongs to no connection"
  typical
  ruleset <<'EOF'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state invalid counter drop; ct state established,related accept; iifname lan0 accept; ct status dnat accept; }
  chain input { type filter hook input priority filter; policy drop; ct state invalid counter drop; ct state established accept; iifname { lo, lan0 } accept; }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 2323 dnat to 192.168.1.10:23; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=4 net.netfilter.nf_conntrack_tcp_loose=0
  serve tcp server 23
  ask client tcp 198.51.100.1 2323 1 requests=12 gap=0.5
  ask client tcp 198.51.100.1 2323 3 requests=2 gap=5.5
  sleep 7
}

names-do-not-resolve() {
  fault "no names are resolved in the office since DNS is forced through the filter box" "NAT of gw: DNAT of port 53 from lan0 also takes the filter box's (192.168.1.10) own questions to its upstream, back to itself; it has no exception, so the box has no answers for anybody"
  with_isp
  rules <<'EOF'
-t nat -A PREROUTING -i lan0 -p udp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i lan0 -p tcp --dport 53 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o lan0 -d 192.168.1.10 -p udp --dport 53 -j MASQUERADE
-t nat -A POSTROUTING -o lan0 -d 192.168.1.10 -p tcp --dport 53 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 53 answer=no # as it waits for its upstream
  serve udp web 53 && serve tcp web 443
  ask pc udp 203.0.113.10 53 3
  ask server udp 203.0.113.10 53 6
  ask pc tcp 203.0.113.10 443 2
}

ftp-listing-hangs() {
  fault "customers can log in by FTP, but listings and files never come" "NAT of gw: no ftp helper is assigned (no CT --helper ftp, and none is automatic since 6.0), so the 227 answer keeps 192.168.1.10, which nobody outside can reach"
  with_isp
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp -m multiport --dports 21,80 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 21,80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp server 21 && serve tcp server 80
  ask web ftp 198.51.100.1 21 4
  ask web tcp 198.51.100.1 80 2
}

phones-after-switchover() {
  fault "since the switch to the second line phones are unregistered, while PCs work" "NAT of gw: the phones' UDP entries keep the SNAT address of the first line (198.51.100.1) as they never pause; they leave by wan1 with it and the second provider drops them"
  with_two_lines
  ip -n pc addr add 192.168.1.21/24 dev eth0
  ip -n pc addr add 192.168.1.22/24 dev eth0
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan1 -j SNAT --to-source 192.0.2.1
EOF
  serve udp web 5060 && serve tcp web 443
  for i in 0 1 2; do ask pc udp 203.0.113.10 5060 3 from=192.168.1.2$i port=5060; done
  ask pc tcp 203.0.113.10 443 3 after=4
  sleep 2
  ip -n isp link set net0 down # the first provider's uplink breaks; what watches the lines changes the route
  ip -n gw route replace default via 192.0.2.254
  sleep 2
}

evening-pages-half-load() {
  fault "with a few people online most pages do not load; alone it works" "NAT of gw: masquerade may use only the first block of 16 ports (20480-20495) of those the provider assigned (MAP-E): all are taken, new connections are dropped"
  with_isp
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -p tcp -j MASQUERADE --to-ports 20480-20495
-t nat -A POSTROUTING -o wan0 -p udp -j MASQUERADE --to-ports 20480-20495
-t nat -A POSTROUTING -o wan0 -p icmp -j MASQUERADE
-t mangle -A FORWARD -o wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp web 443
  ask pc tcp 203.0.113.10 443 20 requests=3 gap=3
  ask server tcp 203.0.113.10 443 10 requests=3 gap=3
  ask pc ping 203.0.113.10 - 1
}

mobile-customers() {
  fault "customers of one mobile network cannot open the site; all others can" "filter of gw (raw PREROUTING): the bogon set contains 100.64.0.0/10, from where the provider's own mobile customers come"
  with_isp
  node mobile
  link isp mob 100.64.7.1/24 mobile eth0 100.64.7.10/24
  default mobile 100.64.7.1
  gw ipset create bogons hash:net
  for net in 0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15 240.0.0.0/4; do gw ipset add bogons $net; done
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -m set --match-set bogons src -j DROP
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  ask web tcp 198.51.100.1 443 4
  ask mobile tcp 198.51.100.1 443 4
}

erp-over-leased-line() {
  fault "the ERP system over the leased line: connections open and then hang; the Internet works" "filter of gw: PCs ask by gw, the leased-line router 192.168.1.2 answers them directly; gw never sees the SYN/ACK and drops the PCs' ACKs and data as 'ct state invalid'"
  with_isp
  router leased
  node erp
  plug lan leased lan 192.168.1.2/24
  link leased wan 10.50.0.1/24 erp eth0 10.50.0.10/24
  default erp 10.50.0.1
  ip -n gw route add 10.50.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  ruleset <<'EOF'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state invalid drop; ct state established,related accept; iifname lan0 accept; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp erp 8080 && serve tcp web 443
  ask pc tcp 10.50.0.10 8080 4
  ask pc tcp 203.0.113.10 443 3
}

ipv6-slow-since-monday() {
  fault "sites with IPv6 open only after a long wait (IPv6 gets no answer, IPv4 works)" "NAT of gw: NPTv6 translates to 2001:db8:66::/64, the prefix before the provider's change; he now routes 2001:db8:77::/64 to gw"
  with_isp
  ip -n gw addr add 2001:db8:1::1/64 dev wan0 && ip -n isp addr add 2001:db8:1::fe/64 dev cust
  ip -n isp addr add 2001:db8:3::1/64 dev net0 && ip -n web addr add 2001:db8:3::10/64 dev eth0
  ip -n gw addr add fd00:1::1/64 dev lan0 && ip -n pc addr add fd00:1::20/64 dev eth0
  default gw 2001:db8:1::fe && default web 2001:db8:3::1 && default pc fd00:1::1
  ip -n isp route add 2001:db8:77::/64 via 2001:db8:1::1
  ruleset <<'EOF'
table ip nat {
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
table ip6 npt {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 dnat ip6 prefix to ip6 daddr map { 2001:db8:66::/64 : fd00:1::/64 }; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 snat ip6 prefix to ip6 saddr map { fd00:1::/64 : 2001:db8:66::/64 }; }
}
EOF
  serve tcp web 443 bind=
  ask pc tcp 2001:db8:3::10 443 5
  ask pc tcp 203.0.113.10 443 5
}

second-public-address() {
  fault "what is published on the second public address cannot be reached, and the server behind it gets no answers" "gw, layer 2: 198.51.100.5 is only in the NAT rules: it is on no interface and not proxied, so nobody answers ARP for it"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.5 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -s 192.168.1.10 -o wan0 -j SNAT --to-source 198.51.100.5
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp server 443 && serve tcp pc 443 && serve tcp client 25
  ask client tcp 198.51.100.5 443 3
  ask client tcp 198.51.100.1 443 3
  ask server tcp 198.51.100.10 25 2
}

line-dead-after-router-swap() {
  fault "since the router was replaced (same address) nothing comes in: no answers, no visitors" "beyond gw: the provider's router has the old router's MAC address as a static neighbour of 198.51.100.1; its frames reach wan0 with a foreign destination MAC and are discarded (other host)"
  with_isp
  ip -n isp neigh replace 198.51.100.1 lladdr 02:00:5e:10:66:01 dev cust nud permanent
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 443 && serve tcp web 443 && serve udp web 53
  ask pc tcp 203.0.113.10 443 3
  ask pc udp 203.0.113.10 53 3
  ask web tcp 198.51.100.1 443 3
}

remote-desktop() {
  fault "remote desktop from outside times out; the same machine's web page works" "behind gw: the server's own firewall takes 3389 only from 192.168.1.0/24 (the local subnet), and DNAT keeps the outside source"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -o lan0 -m conntrack --ctstate DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 33890 -j DNAT --to-destination 192.168.1.10:3389
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  on server iptables -w -A INPUT -p tcp --dport 3389 ! -s 192.168.1.0/24 -j DROP
  serve tcp server 3389 && serve tcp server 443
  ask client tcp 198.51.100.1 33890 4
  ask client tcp 198.51.100.1 443 2
}

outside-resolvers() {
  fault "PCs that use a resolver on the Internet get no answers; those who ask the router do" "connection tracking of gw: raw rules for its own resolver (--notrack, udp 53) match all of port 53: forwarded questions are not tracked, so not masqueraded, and leave as 192.168.1.20"
  with_isp
  rules <<'EOF'
-t raw -A PREROUTING -p udp --dport 53 -j CT --notrack
-t raw -A PREROUTING -p udp --sport 53 -j CT --notrack
-t raw -A OUTPUT -p udp --sport 53 -j CT --notrack
-t raw -A OUTPUT -p udp --dport 53 -j CT --notrack
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp web 53 && serve udp gw 53 && serve tcp web 443
  ask pc udp 203.0.113.10 53 6
  ask pc udp 192.168.1.1 53 3
  ask gw udp 203.0.113.10 53 2
  ask pc tcp 203.0.113.10 443 2
}

plain-http-refused() {
  fault "old applications and updates over http are refused at once, https works" "NAT of gw: REDIRECT of port 80 to the local proxy on 3128, on which nothing listens any more: gw itself answers with a reset"
  with_isp
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname lan0 ip daddr != 192.168.0.0/16 tcp dport 80 redirect to :3128; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
table inet filter {
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iifname { lo, lan0 } accept; icmp type echo-request accept; }
}
EOF
  serve tcp web 443 && serve tcp web 80
  ask pc tcp 203.0.113.10 80 5
  ask server tcp 203.0.113.10 80 2
  ask pc tcp 203.0.113.10 443 4
}

guest-database() {
  fault "the shop's machine cannot reach the database machine on the same host since Docker was installed; the shop's start page works" "filter of gw: bridge-nf-call-iptables=1 sends bridged frames through FORWARD, whose policy Docker set to DROP; nothing accepts vmbr1 to vmbr1"
  with_guests vmbr1 10.10.0 2
  set_ gw net.bridge.bridge-nf-call-iptables=1
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER-USER
-N DOCKER
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-USER -i vmbr1 -o wan0 -j ACCEPT
-A DOCKER-USER -i wan0 -o vmbr1 -m conntrack --ctstate ESTABLISHED,DNAT -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 10.10.0.11
-t nat -A POSTROUTING -s 10.10.0.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp vm1 443 && serve tcp vm2 5432
  ask vm1 tcp 10.10.0.12 5432 6
  ask web tcp 198.51.100.1 443 3
}

busy-shop() {
  fault "most visitors of the shop wait or get nothing at busy hours" "filter of gw: chain synflood lets 5 new connections a second pass (burst 10) and drops the rest, far below what normally comes"
  typical
  rules <<'EOF'
-N synflood
-A synflood -m limit --limit 5/second --limit-burst 10 -j RETURN
-A synflood -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp --syn -j synflood
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 40
  ask pc ping 198.51.100.10 - 1
}

guests-without-internet() {
  fault "guests of a rented machine get no answers from the Internet; the machine itself does" "NAT of gw: both addresses of wan0 are /32 and its gateway is onlink; masquerade takes the first, the management address 10.64.0.5, which the provider drops (the host's own route says src 198.51.100.1)"
  with_guests vmbr0 10.10.0 2
  ip -n gw addr flush dev wan0
  ip -n gw addr add 10.64.0.5/32 dev wan0
  ip -n gw addr add 198.51.100.1/32 dev wan0
  ip -n gw route replace default via 198.51.100.254 dev wan0 onlink src 198.51.100.1
  rules <<'EOF'
-t nat -A POSTROUTING -s 10.10.0.0/24 -o wan0 -j MASQUERADE
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 2222 -j DNAT --to-destination 10.10.0.11:22
EOF
  serve tcp web 443 && serve udp web 53 && serve tcp vm1 22
  ask vm1 tcp 203.0.113.10 443 3
  ask vm2 udp 203.0.113.10 53 3
  ask gw tcp 203.0.113.10 443 2
  ask web tcp 198.51.100.1 2222 2
}

always-our-own-page() {
  fault "whatever https site staff open, the company's own server answers (certificate errors); http works" "NAT of gw: the DNAT rule for 443 has neither -i nor -d, so the LAN's connections to the Internet are also taken to 192.168.1.10"
  with_isp
  rules <<'EOF'
-t nat -A PREROUTING -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -j MASQUERADE
EOF
  serve tcp server 443 && serve tcp web 443 && serve tcp web 80
  ask pc tcp 203.0.113.10 443 6 want=web
  ask pc tcp 203.0.113.10 80 2 want=web
  ask web tcp 198.51.100.1 443 2 want=server
}

nodeport-every-other() {
  fault "every other connection to the NodePort fails" "routing of gw: there is no route to the other node's pods (10.244.1.0/24 via 192.168.1.2, lost with flannel); what is DNATed to 10.244.1.11 follows the default route to the provider"
  with_guests cni0 10.244.0 1
  router node2
  node pod2
  plug lan node2 lan 192.168.1.2/24
  link node2 cni0 10.244.1.1/24 pod2 eth0 10.244.1.11/24
  default pod2 10.244.1.1 && default node2 192.168.1.1
  rules <<'EOF'
-t nat -N KUBE-SVC-SHOP
-t nat -N KUBE-SEP-A
-t nat -N KUBE-SEP-B
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 30080 -j KUBE-SVC-SHOP
-t nat -A KUBE-SVC-SHOP -j MARK --set-xmark 0x4000/0x4000
-t nat -A KUBE-SVC-SHOP -m statistic --mode random --probability 0.5 -j KUBE-SEP-A
-t nat -A KUBE-SVC-SHOP -j KUBE-SEP-B
-t nat -A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.244.0.11:8080
-t nat -A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.244.1.11:8080
-t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
EOF
  serve tcp vm1 8080 && serve tcp pod2 8080
  ask web tcp 198.51.100.1 30080 10
}

site-dead-since-vpn() {
  fault "since the router uses a VPN service the published site is dead; PCs surf well" "routing of gw: the VPN's routes 0.0.0.0/1 and 128.0.0.0/1 send also the answers of connections that came in by wan0 into tun0, with source 198.51.100.1, which the VPN's provider drops; there is no rule that sends them back by wan0"
  with_isp
  router vpn
  link gw tun0 10.8.0.2/24 vpn tun0 10.8.0.1/24
  plug net vpn eth0 203.0.113.2/24
  on vpn iptables -w -A FORWARD -i tun0 ! -s 10.8.0.0/24 -j DROP
  on vpn iptables -w -t nat -A POSTROUTING -o eth0 -j MASQUERADE
  for half in 0.0.0.0/1 128.0.0.0/1; do ip -n gw route add $half via 10.8.0.1; done
  set_ gw net.ipv4.conf.{all,wan0,tun0}.rp_filter=2
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport { 80, 443 } dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname { wan0, tun0 } masquerade; }
}
EOF
  serve tcp server 443 && serve tcp web 443
  ask web tcp 198.51.100.1 443 5
  ask pc tcp 203.0.113.10 443 3
}

certificate-logins() {
  fault "VPN logins with certificates fail, those with a shared key work" "filter of gw: a netdev chain at wan0's ingress drops fragments, so large IKE messages (2.4 KB with certificates) for the concentrator behind DNAT are never whole"
  typical
  ruleset <<'EOF'
table netdev early {
  chain wan { type filter hook ingress device wan0 priority -500; policy accept; ip frag-off & 0x1fff != 0 counter drop; ip saddr 127.0.0.0/8 drop; }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 udp dport { 500, 4500 } dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve udp server 500 && serve udp server 4500
  ask client udp 198.51.100.1 500 3 up=300
  ask client udp 198.51.100.1 500 3 up=2400
  ask client udp 198.51.100.1 4500 4 up=2400
}

scanned-office() {
  healthy "a strict firewall: scans of 23, 445 and 3389 time out on purpose; QUIC and https work"
  typical
  ruleset <<'EOF'
table inet fw {
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iifname { lo, lan0 } accept; icmp type echo-request limit rate 10/second accept; counter; }
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; ct state invalid drop; iifname lan0 oifname wan0 accept; ct status dnat accept; counter; }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 443 dnat to 192.168.1.10; iifname wan0 udp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  serve tcp server 443 && serve udp server 443 && serve tcp client 443
  ask client tcp 198.51.100.1 443 4
  ask client udp 198.51.100.1 443 6 up=1200 down=1200
  ask pc tcp 198.51.100.10 443 3
  for port in 23 445 3389; do ask scanner tcp 198.51.100.1 $port 1 timeout=1; done
}

both-lines-in-use() {
  healthy "two lines: what comes in by the second is answered by it (connmark, table 2), all else leaves by the first; rp_filter is loose"
  with_two_lines
  set_ gw net.ipv4.conf.{all,wan0,wan1}.rp_filter=2
  rules <<'EOF'
-t mangle -A PREROUTING -i wan1 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -m connmark --mark 2 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o wan1 -j SNAT --to-source 192.0.2.1
EOF
  ip -n gw route add default via 192.0.2.254 table 2
  ip -n gw rule add fwmark 2 lookup 2
  ip -n gw rule add from 192.0.2.1 lookup 2
  serve tcp server 443 && serve tcp web 80
  ask web tcp 198.51.100.1 8443 4
  ask web tcp 192.0.2.1 8443 4
  ask pc tcp 203.0.113.10 80 3
  ask gw ping 203.0.113.10 - 1 from=192.0.2.1
}

standby-line() {
  healthy "the standby line has no carrier; its route, SNAT and DNAT rules wait for it"
  with_two_lines
  ip -n gw route replace default via 198.51.100.254 metric 100
  ip -n gw route del default metric 0
  ip -n gw route add default via 192.0.2.254 dev wan1 metric 200
  ip -n isp2 link set cust down
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 192.0.2.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan1 -j MASQUERADE
EOF
  serve tcp server 443 && serve tcp web 443
  ask web tcp 198.51.100.1 443 4
  ask pc tcp 203.0.113.10 443 4
}

hub-and-branch() {
  healthy "a tunnel with exceptions from masquerade, MSS clamping and a small MTU; the head office takes only the branch's own addresses"
  with_hq 10.20.0.10/24 10.20.0.1/24 192.168.1.0/24
  ip -n gw route add 10.20.0.0/24 via 10.255.0.1
  ip -n hq route add 192.168.1.0/24 via 10.255.0.2
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE
-t mangle -A FORWARD -o tun0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-t mangle -A FORWARD -i tun0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
EOF
  serve tcp files 445 && serve tcp web 443 && serve tcp server 80
  ask pc tcp 10.20.0.10 445 4 down=40000
  ask files tcp 192.168.1.10 80 2
  ask pc tcp 203.0.113.10 443 4
}

triangle-through-office() {
  healthy "half of a conversation: PCs ask the leased line's network by gw, answers come directly; the rule for LAN to LAN is before those on states, on purpose"
  with_isp
  router leased
  node erp
  plug lan leased lan 192.168.1.2/24
  link leased wan 10.50.0.1/24 erp eth0 10.50.0.10/24
  default erp 10.50.0.1
  ip -n gw route add 10.50.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  ruleset <<'EOF'
table inet fw {
  chain raw { type filter hook prerouting priority raw; iifname lan0 ip daddr 10.50.0.0/24 notrack; }
  chain forward { type filter hook forward priority filter; policy drop; iifname lan0 oifname lan0 accept; ct state invalid drop; ct state established,related accept; iifname lan0 accept; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp erp 8080 && serve tcp web 443
  ask pc tcp 10.50.0.10 8080 4
  ask pc tcp 203.0.113.10 443 4
}

shaped-line() {
  healthy "the uplink is shaped to 6 Mbit/s with HTB, voice has its class; transfers wait a little, none is lost"
  with_isp
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 6mbit
  gw tc class add dev wan0 parent 1:1 classid 1:10 htb rate 1mbit ceil 6mbit prio 0
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 5mbit ceil 6mbit prio 1
  gw tc filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip tos 0xb8 0xfc flowid 1:10
  rules <<'EOF'
-t mangle -A POSTROUTING -o wan0 -p udp --dport 5060 -j DSCP --set-dscp 46
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 && serve udp web 5060
  ask web tcp 198.51.100.1 443 3 down=60000 timeout=5
  ask pc udp 203.0.113.10 5060 5 port=5060
}

knock-before-ssh() {
  healthy "ssh to the server opens only after a knock on UDP 7000, which is dropped on purpose; who does not knock (scanner) is dropped"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  rules <<'EOF'
-P INPUT DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-A INPUT -i wan0 -p udp --dport 7000 -m recent --name KNOCK --set -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 22 -m recent --name KNOCK --rcheck --seconds 60 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 22 && serve tcp client 443
  ask client udp 198.51.100.1 7000 0.5 answer=no after=0.1
  ask client tcp 198.51.100.1 22 3 after=1.5
  ask scanner tcp 198.51.100.1 22 1
  ask pc tcp 198.51.100.10 443 3
}

limits-with-room() {
  healthy "limits of new connections by sender, of connections at a time and of logging, all far above what comes"
  typical
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -p tcp --syn -m hashlimit --hashlimit-above 300/second --hashlimit-burst 600 --hashlimit-mode srcip --hashlimit-name web -j DROP
-A FORWARD -i wan0 -p tcp --syn -m connlimit --connlimit-above 400 --connlimit-mask 32 -j REJECT --reject-with tcp-reset
-A FORWARD -i wan0 -m limit --limit 10/minute -j NFLOG --nflog-prefix new
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE --random-fully
EOF
  serve tcp server 443 && serve udp client 53
  ask client tcp 198.51.100.1 443 40
  ask pc udp 198.51.100.10 53 5
}

compose-host() {
  healthy "a Docker host: docker0 has no container, one project's bridge has two; published ports, hairpin masquerade, isolation chains, policy DROP"
  with_guests br-app 172.18.0 2
  ip -n gw link add docker0 type bridge && address gw docker0 172.17.0.1/16
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER
-N DOCKER-ISOLATION-STAGE-1
-N DOCKER-ISOLATION-STAGE-2
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-ISOLATION-STAGE-1 -i br-app ! -o br-app -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A FORWARD -o br-app -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o br-app -j DOCKER
-A FORWARD -i br-app -j ACCEPT
-A DOCKER -d 172.18.0.11/32 ! -i br-app -o br-app -p tcp --dport 8080 -j ACCEPT
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A DOCKER ! -i br-app -p tcp --dport 80 -j DNAT --to-destination 172.18.0.11:8080
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-app -j MASQUERADE
-t nat -A POSTROUTING -s 172.18.0.11/32 -d 172.18.0.11/32 -p tcp --dport 8080 -j MASQUERADE
EOF
  serve tcp vm1 8080 && serve tcp vm2 6379 && serve tcp web 443
  ask web tcp 198.51.100.1 80 5
  ask gw tcp 198.51.100.1 80 1
  ask vm1 tcp 172.18.0.12 6379 3
  ask vm2 tcp 203.0.113.10 443 3
}

hypervisor-with-hook() {
  healthy "libvirt's network with its REJECT rules, and a hook's ACCEPT before them for what is published; an interface of a machine that is off has no carrier"
  with_guests virbr0 192.168.122 2
  node off
  link gw vnet9 - off eth0 - && ip -n off link set eth0 down && ip -n gw link set vnet9 master virbr0
  rules <<'EOF'
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-A FORWARD -d 192.168.122.11 -o virbr0 -p tcp --dport 443 -m conntrack --ctstate NEW -j ACCEPT
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.122.11
-t nat -A POSTROUTING -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
EOF
  serve tcp vm1 443 && serve tcp web 80 && serve udp gw 53 bind=192.168.122.1
  ask web tcp 198.51.100.1 443 5
  ask vm2 tcp 203.0.113.10 80 3
  ask vm2 udp 192.168.122.1 53 3
}

kube-node() {
  healthy "a Kubernetes node: two pods behind a NodePort and a cluster address, a service without endpoints (REJECT, nobody asks), marks for masquerade"
  with_guests cni0 10.244.0 3
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-SVC-SHOP
-t nat -N KUBE-MARK-MASQ
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A KUBE-SERVICES -d 10.96.0.20/32 -p tcp --dport 80 -j KUBE-SVC-SHOP
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -p tcp --dport 30080 -j KUBE-SVC-SHOP
-t nat -A KUBE-SVC-SHOP -j KUBE-MARK-MASQ
-t nat -A KUBE-SVC-SHOP -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.0.11:8080
-t nat -A KUBE-SVC-SHOP -p tcp -j DNAT --to-destination 10.244.0.12:8080
-t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
-A FORWARD -d 10.96.0.77/32 -p tcp --dport 80 -j REJECT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
EOF
  serve tcp vm1 8080 && serve tcp vm2 8080 && serve tcp web 443
  ask web tcp 198.51.100.1 30080 6
  ask vm3 tcp 10.96.0.20 80 4
  ask vm3 tcp 203.0.113.10 443 2
}

banned-and-blackholed() {
  healthy "private networks are unreachable by route on purpose, a banned scanner (fail2ban's set) times out"
  with_isp
  for net in 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16; do ip -n gw route add unreachable $net; done
  ip -n gw route add blackhole 192.0.2.0/24
  node scanner
  plug wan scanner eth0 198.51.100.66/24
  gw ipset create f2b-sshd hash:ip timeout 600
  gw ipset add f2b-sshd 198.51.100.66
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -m set --match-set f2b-sshd src -j DROP
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 22,443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443 && serve tcp server 22 && serve tcp web 443
  ask web tcp 198.51.100.1 443 5
  ask web tcp 198.51.100.1 22 1
  ask scanner tcp 198.51.100.1 22 2
  ask pc tcp 203.0.113.10 443 3
}

log-collector() {
  healthy "syslog and NetFlow by UDP through DNAT, traps outwards: nobody answers such datagrams"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 udp dport { 514, 2055 } dnat to 192.168.1.10; iifname wan0 tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve udp server 514 answer=no && serve udp server 2055 answer=no && serve udp client 162 answer=no && serve tcp server 443
  ask client udp 198.51.100.1 514 10 answer=no
  ask client udp 198.51.100.1 2055 4 port=2055 up=1400 answer=no
  ask pc udp 198.51.100.10 162 2 answer=no
  ask client tcp 198.51.100.1 443 4
}

tuned-gateway() {
  healthy "shortened timeouts, tcp_loose 0, liberal windows, and no tracking for the router's own public name server"
  with_isp
  set_ gw net.netfilter.nf_conntrack_tcp_loose=0 net.netfilter.nf_conntrack_tcp_be_liberal=1 net.netfilter.nf_conntrack_tcp_timeout_established=7440 \
    net.netfilter.nf_conntrack_tcp_timeout_time_wait=15 net.netfilter.nf_conntrack_udp_timeout=20 net.netfilter.nf_conntrack_udp_timeout_stream=60
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -d 198.51.100.1 -p udp --dport 53 -j CT --notrack
-t raw -A OUTPUT -o wan0 -s 198.51.100.1 -p udp --sport 53 -j CT --notrack
-A INPUT -m conntrack --ctstate INVALID -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve udp gw 53 && serve tcp server 443 && serve udp web 53 && serve tcp web 443
  ask web udp 198.51.100.1 53 20
  ask web tcp 198.51.100.1 443 4 requests=3 gap=2
  ask pc udp 203.0.113.10 53 4
  ask pc tcp 203.0.113.10 443 4
}

impatient-visitors() {
  healthy "a slow application (1.2 s): patient clients wait, some clients give up after 0.5 s (their timeouts are meant), probes end with a reset"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 80 dnat to 192.168.1.10:8080; iifname wan0 tcp dport 81 dnat to 192.168.1.20:8081; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 8080 delay=1.2 && serve tcp pc 8081
  ask client tcp 198.51.100.1 80 4 timeout=6
  ask client tcp 198.51.100.1 80 1 timeout=0.5
  ask client tcp 198.51.100.1 81 2 abort=1
}

unique-local-office() {
  healthy "IPv6 with unique local addresses inside and NPTv6 to the provider's prefix, strict ICMPv6 filter; IPv4 masqueraded"
  with_isp
  ip -n gw addr add 2001:db8:1::1/64 dev wan0 && ip -n isp addr add 2001:db8:1::fe/64 dev cust
  ip -n isp addr add 2001:db8:3::1/64 dev net0 && ip -n web addr add 2001:db8:3::10/64 dev eth0
  ip -n gw addr add fd00:1::1/64 dev lan0 && ip -n pc addr add fd00:1::20/64 dev eth0
  default gw 2001:db8:1::fe && default web 2001:db8:3::1 && default pc fd00:1::1
  ip -n isp route add 2001:db8:77::/64 via 2001:db8:1::1
  ruleset <<'EOF'
table inet fw {
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iifname { lo, lan0 } accept; icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert, packet-too-big } accept; }
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname lan0 accept; ip6 daddr fd00:1::20 tcp dport 443 accept; }
}
table ip nat { chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }; }
table ip6 npt {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 dnat ip6 prefix to ip6 daddr map { 2001:db8:77::/64 : fd00:1::/64 }; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 snat ip6 prefix to ip6 saddr map { fd00:1::/64 : 2001:db8:77::/64 }; }
}
EOF
  serve tcp web 443 bind= && serve tcp pc 443 bind=
  ask pc tcp 2001:db8:3::10 443 4
  ask pc tcp 203.0.113.10 443 4
  ask web tcp 2001:db8:77::20 443 3
}

routed-pool() {
  healthy "SNAT and DNAT with a pool 198.18.5.240/29 that the provider routes to gw: its addresses are on no interface, and a blackhole route takes what is not translated"
  with_isp
  ip -n isp route add 198.18.5.240/29 via 198.51.100.1
  on isp iptables -w -I FORWARD -i cust -s 198.18.5.240/29 -j ACCEPT
  ip -n gw route add blackhole 198.18.5.240/29
  rules <<'EOF'
-t nat -A PREROUTING -d 198.18.5.241 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.10 -o wan0 -j SNAT --to-source 198.18.5.241
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j SNAT --to-source 198.18.5.242-198.18.5.246 --persistent
EOF
  serve tcp server 443 && serve tcp web 443 && serve udp web 53
  ask web tcp 198.18.5.241 443 4
  ask pc tcp 203.0.113.10 443 4
  ask pc udp 203.0.113.10 53 4
  ask server tcp 203.0.113.10 443 2
}

proxied-address() {
  healthy "a second public address is on no interface: a proxy neighbour entry and a host route to lan0 make gw answer ARP for it"
  typical
  ip -n gw route add 198.51.100.5/32 dev lan0
  ip -n gw neigh add proxy 198.51.100.5 dev wan0
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; ip daddr 198.51.100.5 tcp dport 443 dnat to 192.168.1.10; ip daddr 198.51.100.1 tcp dport 443 dnat to 192.168.1.20; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 snat to ip saddr map { 192.168.1.10 : 198.51.100.5, 192.168.1.20 : 198.51.100.1 }; }
}
EOF
  serve tcp server 443 && serve tcp pc 443 && serve tcp client 25
  ask client tcp 198.51.100.5 443 4
  ask client tcp 198.51.100.1 443 3
  ask server tcp 198.51.100.10 25 3
}

same-network-twice() {
  healthy "branch and head office both have 192.168.1.0/24: NETMAP on both sides, each sees the other as 10.99.x.0/24"
  with_hq 192.168.1.10/24 192.168.1.1/24 10.99.1.0/24
  ip -n gw route add 10.99.2.0/24 via 10.255.0.1
  ip -n hq route add 10.99.1.0/24 via 10.255.0.2
  on hq iptables -w -t nat -A PREROUTING -i tun0 -d 10.99.2.0/24 -j NETMAP --to 192.168.1.0/24
  on hq iptables -w -t nat -A POSTROUTING -o tun0 -s 192.168.1.0/24 -j NETMAP --to 10.99.2.0/24
  rules <<'EOF'
-t nat -A PREROUTING -i tun0 -d 10.99.1.0/24 -j NETMAP --to 192.168.1.0/24
-t nat -A POSTROUTING -o tun0 -s 192.168.1.0/24 -j NETMAP --to 10.99.1.0/24
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
EOF
  serve tcp files 445 && serve tcp server 80 && serve tcp web 443
  ask pc tcp 10.99.2.10 445 4 want=files
  ask files tcp 10.99.1.10 80 3 want=server
  ask pc tcp 203.0.113.10 443 3
}

guest-wifi() {
  healthy "guests may use the Internet, not the office: their attempts at 192.168.1.10 are refused on purpose; their DNS is redirected to the router"
  with_isp
  node guest
  link gw guest0 192.168.50.1/24 guest eth0 192.168.50.30/24
  default guest 192.168.50.1
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i guest0 -o lan0 -j REJECT --reject-with icmp-admin-prohibited
-A FORWARD -i lan0 -o guest0 -j REJECT --reject-with icmp-admin-prohibited
-t nat -A PREROUTING -i guest0 -p udp --dport 53 -j REDIRECT --to-ports 5353
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp web 443 && serve udp gw 5353 && serve tcp server 445
  ask guest tcp 203.0.113.10 443 4
  ask guest udp 203.0.113.53 53 4
  ask guest tcp 192.168.1.10 445 1
  ask pc tcp 203.0.113.10 443 3
}
