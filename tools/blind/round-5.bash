# shellcheck shell=bash
# Round 5: night tickets. 30 faults, 20 healthy odd hosts.

# isp: 198.51.100.254 on the switch wan, behind it web 203.0.113.80; private addresses end there.
with_isp() {
  router isp
  node web
  plug wan isp eth0 198.51.100.254/24
  link isp web0 203.0.113.254/24 web eth0 203.0.113.80/24
  default web 203.0.113.254
  default gw 198.51.100.254
  for net in 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16; do
    on isp iptables -A FORWARD -s $net -j DROP
    on isp ip route add blackhole $net
  done
}
# a VPN to headquarters, as with WireGuard: wg0 – site, which admits 192.168.1.0/24 only; hq 10.20.0.10
with_site() {
  router site
  node hq
  link gw wg0 10.99.0.1/30 site wg0 10.99.0.2/30
  gw ip link set wg0 mtu 1420
  on site ip link set wg0 mtu 1420
  link site lan0 10.20.0.1/24 hq eth0 10.20.0.10/24
  default hq 10.20.0.1
  gw ip route add 10.20.0.0/24 via 10.99.0.2
  on site ip route add 192.168.1.0/24 via 10.99.0.1
  on site iptables -t raw -A PREROUTING -i wg0 ! -s 192.168.1.0/24 -j DROP
}

# ---------------------------------------------------------------- faults

office-not-mobile() {
  fault "the portal works from the office, from mobile networks connections time out" "the server's default route leads to the old router 192.168.1.254, only the office has a static route by gw: answers to others leave past gw, untranslated"
  typical
  node mobile
  router old
  plug wan mobile eth0 198.51.100.66/24
  plug wan old wan0 198.51.100.2/24
  plug lan old lan0 192.168.1.254/24
  on old iptables -t nat -A POSTROUTING -o wan0 -j MASQUERADE
  on server ip route replace default via 192.168.1.254
  on server ip route add 198.51.100.10/32 via 192.168.1.1
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 4
  ask mobile tcp 198.51.100.1 443 4
}

uploads-hang() {
  fault "uploads to the cloud hang, browsing works" "the provider's line has MTU 1400 and says so, but gw's filter drops all ICMP in FORWARD, also fragmentation-needed: path MTU discovery fails"
  typical
  with_isp
  ip -n isp link set web0 mtu 1400
  rules <<'R'
-P FORWARD DROP
-A FORWARD -p icmp -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp web 443
  ask pc tcp 203.0.113.80 443 3
  ask server tcp 203.0.113.80 443 3 up=40000
}

every-third() {
  fault "every third request to the service times out" "Kubernetes service of three endpoints; the route to the pod network of node2 (10.244.2.0/24) was lost when the node was added again: its packets leave by the default route to the provider, who drops them"
  router gw node2
  node client pod1 pod2 pod3
  switch wan cni
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  plug wan node2 wan0 198.51.100.20/24
  plug cni gw cni0 10.244.1.1/24
  plug cni pod1 eth0 10.244.1.5/24
  plug cni pod2 eth0 10.244.1.6/24
  link node2 cni0 10.244.2.1/24 pod3 eth0 10.244.2.7/24
  default pod1 10.244.1.1; default pod2 10.244.1.1; default pod3 10.244.2.1
  with_isp
  default node2 198.51.100.254
  on node2 ip route add 10.244.1.0/24 via 198.51.100.1
  rules <<'R'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-NODEPORTS
-t nat -N KUBE-EXT-WEB
-t nat -N KUBE-SVC-WEB
-t nat -N KUBE-SEP-A
-t nat -N KUBE-SEP-B
-t nat -N KUBE-SEP-C
-t nat -N KUBE-MARK-MASQ
-t nat -N KUBE-POSTROUTING
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-EXT-WEB
-t nat -A KUBE-EXT-WEB -j KUBE-MARK-MASQ
-t nat -A KUBE-EXT-WEB -j KUBE-SVC-WEB
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.33333 -j KUBE-SEP-A
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.5 -j KUBE-SEP-B
-t nat -A KUBE-SVC-WEB -j KUBE-SEP-C
-t nat -A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.244.1.5:8080
-t nat -A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.244.1.6:8080
-t nat -A KUBE-SEP-C -p tcp -j DNAT --to-destination 10.244.2.7:8080
-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
R
  serve tcp pod1 8080
  serve tcp pod2 8080
  serve tcp pod3 8080
  ask client tcp 198.51.100.1 30080 30
}

second-uplink() {
  fault "since the second uplink was added, the port forward works by the first line only; by the second it times out" "strict rp_filter: sources of the second line are routed by the first, gw drops them on entry at dsl0"
  typical
  with_isp
  router isp2
  node mobile
  switch dsl
  plug dsl isp2 eth0 192.0.2.254/24
  plug dsl gw dsl0 192.0.2.1/24
  link isp2 m0 198.18.5.1/24 mobile eth0 198.18.5.10/24
  default mobile 198.18.5.1
  set_ gw net.ipv4.conf.{all,default,wan0,dsl0,lan0}.rp_filter=1
  gw ip route add default via 192.0.2.254 dev dsl0 table 200
  gw ip rule add from 192.0.2.1 table 200
  rules <<'R'
-t nat -A PREROUTING -p tcp -m addrtype --dst-type LOCAL --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o dsl0 -j MASQUERADE
R
  serve tcp server 443
  ask client tcp 198.51.100.1 443 3
  ask mobile tcp 192.0.2.1 443 5
}

new-firewall-script() {
  fault "since the new firewall script DNS and the phones time out, web works" "FORWARD admits answers (ESTABLISHED) for tcp only; the answers of UDP fall to policy DROP"
  typical
  rules <<'R'
-P FORWARD DROP
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -o lan0 -p tcp -m state --state ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i wan0 -o lan0 -p icmp --icmp-type echo-reply -j ACCEPT
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j MASQUERADE
R
  serve udp client 53
  serve tcp client 443
  ask pc udp 198.51.100.10 53 5
  ask pc tcp 198.51.100.10 443 5
  ask server udp 198.51.100.10 53 2
}

nftables-migration() {
  fault "since the migration to nftables the published services time out, surfing works" "the old iptables-legacy DNAT and its accepts are still loaded, but the new nftables forward chain (policy drop) does not admit translated connections from outside"
  typical
  gw iptables-legacy -t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
  gw iptables-legacy -t nat -A PREROUTING -i wan0 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.10:25
  gw iptables-legacy -P FORWARD DROP
  gw iptables-legacy -A FORWARD -m state --state ESTABLISHED,RELATED -j ACCEPT
  gw iptables-legacy -A FORWARD -i lan0 -j ACCEPT
  gw iptables-legacy -A FORWARD -d 192.168.1.10 -p tcp -m multiport --dports 25,443 -j ACCEPT
  ruleset <<'R'
table inet filter {
  chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iif lo accept; iifname lan0 accept; meta l4proto { icmp, ipv6-icmp } accept; tcp dport 22 accept; }
  chain forward { type filter hook forward priority filter; policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; iifname lan0 oifname wan0 accept; }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
R
  serve tcp server 443
  serve tcp server 25
  serve tcp client 443
  ask client tcp 198.51.100.1 443 4
  ask client tcp 198.51.100.1 25 1
  ask pc tcp 198.51.100.10 443 4
}

ipv6-users-complain() {
  fault "IPv6 users reach nothing behind the gateway, IPv4 works" "ip6tables INPUT has policy DROP and admits no ICMPv6: neighbour solicitations and advertisements are dropped, gw is not found and finds nobody"
  typical 6
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -P INPUT DROP
-6 -A INPUT -i lo -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A INPUT -p tcp --dport 22 -j ACCEPT
-6 -P FORWARD DROP
-6 -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A FORWARD -i lan0 -j ACCEPT
-6 -A FORWARD -p ipv6-icmp -j ACCEPT
-6 -A FORWARD -d 2001:db8:2::10 -p tcp --dport 443 -j ACCEPT
R
  serve tcp server 443 bind=
  ask client tcp 198.51.100.1 443 4
  ask client tcp 2001:db8:2::10 443 4
}

phones-no-audio() {
  fault "phones register, calls have no audio" "SIP is forwarded to the new PBX 192.168.1.10, the RTP range still to the old one, 192.168.1.30, which is gone"
  typical
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p udp --dport 5060:5061 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p udp --dport 10000:20000 -j DNAT --to-destination 192.168.1.30
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve udp server 5060
  serve udp server 12000
  serve udp server 12002
  ask client udp 198.51.100.1 5060 2
  ask client udp 198.51.100.1 12000 50 port=16384 up=172
  ask client udp 198.51.100.1 12002 50 port=16386 up=172
}

dns-slow() {
  fault "some names resolve only after seconds: large answers (DNSSEC, TXT) never arrive, small ones do" "an anti-amplification rule in FORWARD drops UDP from port 53 longer than 540 bytes"
  typical
  with_isp
  rules <<'R'
-P FORWARD DROP
-A FORWARD -p udp --sport 53 -m length --length 541:65535 -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve udp web 53
  ask pc udp 203.0.113.80 53 6
  ask server udp 203.0.113.80 53 4 down=1200
}

websockets-office() {
  fault "in a large office new sessions time out while others run, at home all works" "iptables-legacy connlimit: more than 10 connections of one address are dropped, and the office is one address"
  typical
  node home
  plug wan home eth0 198.51.100.66/24
  gw iptables-legacy -t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10:8443
  gw iptables-legacy -t nat -A POSTROUTING -o wan0 -j MASQUERADE
  gw iptables-legacy -A FORWARD -p tcp --syn --dport 8443 -m connlimit --connlimit-above 10 --connlimit-mask 32 -j DROP
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 5 requests=25 gap=2
  ask home tcp 198.51.100.1 443 2
}

sessions-after-idle() {
  fault "database sessions that were idle hang, new ones work" "established timeout tuned down to 5 s, then the entry is gone and the rule 'NEW but not SYN' drops what the session sends"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=5
  rules <<'R'
-A FORWARD -p tcp ! --syn -m state --state NEW -j DROP
-A FORWARD -m state --state ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-P FORWARD DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp client 5432
  ask pc tcp 198.51.100.10 5432 4 requests=3 gap=7 timeout=3
  sleep 6
}

mobile-not-office() {
  fault "the company's site works from outside, from the office it times out" "no hairpin: DNAT to the server, which is in the same network as the office and answers it directly"
  typical
  rules <<'R'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
R
  serve tcp server 443
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 198.51.100.1 443 5
}

containers-no-internet() {
  fault "since the Docker host was locked down, containers reach nothing outside; the published port works for the office" "DOCKER-USER drops all from wan0 but the office's address, without an exception for established: answers to containers are dropped"
  router gw
  node client mirror app
  switch wan docker
  plug wan client eth0 198.51.100.10/24
  plug wan mirror eth0 198.51.100.80/24
  plug wan gw wan0 198.51.100.1/24
  plug docker gw docker0 172.17.0.1/16
  plug docker app eth0 172.17.0.2/16
  default app 172.17.0.1
  rules <<'R'
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT
-A DOCKER-USER -i wan0 ! -s 198.51.100.10/32 -j DROP
-A DOCKER-USER -j RETURN
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
R
  serve tcp app 80
  serve tcp mirror 443
  ask client tcp 198.51.100.1 8080 3
  ask app tcp 198.51.100.80 443 4
}

branch-since-compose() {
  fault "since a new compose project runs, the branch office gets no answer from the application, others do" "the project's bridge br-7f3a1c has 172.18.0.0/16, the branch's network: gw's answers go to that bridge instead of the branch router"
  router gw branch
  node client app dept
  switch wan docker compose
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  plug wan branch wan0 198.51.100.30/24
  link branch lan0 172.18.40.1/24 dept eth0 172.18.40.5/24
  default dept 172.18.40.1
  plug docker gw docker0 172.17.0.1/16
  plug docker app eth0 172.17.0.2/16
  default app 172.17.0.1
  plug compose gw br-7f3a1c 172.18.0.1/16
  gw ip route add 172.18.0.0/16 via 198.51.100.30 metric 100
  rules <<'R'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -i br-7f3a1c -j ACCEPT
-A FORWARD -d 172.17.0.2/32 -o docker0 -p tcp --dport 80 -j ACCEPT
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A POSTROUTING -s 172.18.0.0/16 ! -o br-7f3a1c -j MASQUERADE
R
  serve tcp app 80
  ask client tcp 198.51.100.1 8080 4
  ask dept tcp 198.51.100.1 8080 4
}

new-address-from-provider() {
  fault "since the provider changed the address nothing outside answers the office" "snat to the old address 198.51.100.7, which gw no longer has: nobody answers the ARP for it"
  typical
  ruleset <<'R'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" ip saddr 192.168.1.0/24 snat to 198.51.100.7; }
}
R
  serve tcp client 443
  serve tcp server 443
  ask pc tcp 198.51.100.10 443 5
  ask pc ping 198.51.100.10 - 1
  ask client tcp 198.51.100.1 443 2
}

site-to-site() {
  fault "headquarters behind the VPN cannot be reached from the office, the internet can" "MASQUERADE without an interface or exception takes the tunnel's traffic too: it leaves by wg0 from 10.99.0.1, and the far end admits 192.168.1.0/24 only (AllowedIPs)"
  typical
  with_isp
  with_site
  rules <<'R'
-t nat -A POSTROUTING -s 192.168.1.0/24 ! -d 192.168.1.0/24 -j MASQUERADE
R
  serve tcp hq 443
  serve tcp web 443
  ask pc tcp 10.20.0.10 443 4
  ask server tcp 10.20.0.10 443 2
  ask pc tcp 203.0.113.80 443 4
}

cgnat-customers() {
  fault "customers' new sessions time out in the evening, running ones go on" "deterministic CGNAT: each customer gets 64 ports, and this one has 64 sessions to the same server"
  typical
  ruleset <<'R'
table ip cgn {
  map blocks { type ipv4_addr : interval ipv4_addr . inet_service; flags interval; elements = { 192.168.1.10 : 198.51.100.1 . 20000-20063, 192.168.1.20 : 198.51.100.1 . 20064-20127 } }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "wan0" meta l4proto { tcp, udp } snat ip to ip saddr map @blocks
    oifname "wan0" masquerade
  }
}
R
  serve tcp client 443
  ask pc tcp 198.51.100.10 443 30 requests=20 gap=3
  ask server tcp 198.51.100.10 443 1
}

syslog-moved() {
  fault "since the log server moved, a device that sends all the time is not received; those that start anew are" "its UDP entry dates from before the rule was changed: it is still translated to 192.168.1.11, which is gone, and each packet refreshes it"
  typical
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p udp --dport 1514 -j DNAT --to-destination 192.168.1.11
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve udp server 1514
  ask client udp 198.51.100.1 1514 10 port=40514
  sleep 3
  rules <<'R'
-t nat -R PREROUTING 1 -i wan0 -p udp --dport 1514 -j DNAT --to-destination 192.168.1.10
R
  ask client udp 198.51.100.1 1514 3
}

ftp-listing-hangs() {
  fault "FTP logs in, the listing of the directory is refused or times out" "the filter admits ESTABLISHED only, not RELATED: the data connection that the helper expects is dropped in FORWARD"
  typical
  rules <<'R'
-t raw -A PREROUTING -i wan0 -p tcp --dport 21 -j CT --helper ftp
-t nat -A PREROUTING -i wan0 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -p tcp --dport 21 -m conntrack --ctstate NEW -j ACCEPT
R
  serve ftp server 21
  ask client ftp 198.51.100.1 21 3
}

bridged-vms() {
  fault "since Docker is installed on the hypervisor, the bridged machines reach nothing; containers work" "bridge-nf-call-iptables=1 sends bridged frames through FORWARD, whose policy Docker set to DROP"
  router gw
  node client vm app
  switch wan docker
  plug wan client eth0 198.51.100.10/24
  gw ip link add br0 up type bridge
  gw ip addr add 198.51.100.1/24 dev br0
  plug wan gw wan0 -
  link gw vnet0 - vm eth0 198.51.100.30/24
  gw ip link set wan0 master br0
  gw ip link set vnet0 master br0
  plug docker gw docker0 172.17.0.1/16
  plug docker app eth0 172.17.0.2/16
  default app 172.17.0.1
  set_ gw net.bridge.bridge-nf-call-iptables=1
  rules <<'R'
-P FORWARD DROP
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
R
  serve tcp app 80
  serve tcp vm 443
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 3
  ask client tcp 198.51.100.30 443 4
  ask vm tcp 198.51.100.10 443 2
}

forwards-since-vpn() {
  fault "since the home router uses a VPN provider, port forwards time out from outside; surfing works" "wg-quick's rule sends all that is not marked into table 51820: the answers of forwarded connections leave by the VPN instead of wan0"
  typical
  with_isp
  node provider
  link gw wg0 10.66.0.2/24 provider eth0 10.66.0.1/24
  gw ip route add default via 10.66.0.1 dev wg0 table 51820
  gw ip rule add not fwmark 0xca6c table 51820
  gw ip rule add table main suppress_prefixlength 0
  set_ gw net.ipv4.conf.all.src_valid_mark=1
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wg0 -j MASQUERADE
R
  on provider ip addr add 198.18.9.9/32 dev lo
  serve tcp server 443
  serve tcp provider 443
  ask web tcp 198.51.100.1 443 5
  ask pc tcp 198.18.9.9 443 3
}

ipv6-since-new-prefix() {
  fault "since the provider delegated a new prefix, nothing answers over IPv6; IPv4 works" "NPTv6 (NETMAP) still maps to the old prefix 2001:db8:4::/64, which the provider no longer routes here"
  typical
  with_isp
  gw ip addr add 2001:db8:f::1/64 dev wan0
  on isp ip addr add 2001:db8:f::fe/64 dev eth0
  on isp ip route add 2001:db8:5::/64 via 2001:db8:f::1
  on isp ip route add blackhole 2001:db8:4::/64
  on isp ip addr add 2001:db8:99::1/64 dev web0
  on web ip addr add 2001:db8:99::80/64 dev eth0
  gw ip addr add fd00:1::1/64 dev lan0
  on pc ip addr add fd00:1::20/64 dev eth0
  default web 2001:db8:99::1; default gw 2001:db8:f::fe; default pc fd00:1::1
  rules <<'R'
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:4::/64
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:4::/64 -j NETMAP --to fd00:1::/64
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp web 443 bind=
  ask pc tcp 2001:db8:99::80 443 4
  ask pc tcp 203.0.113.80 443 4
}

second-public-address() {
  fault "services on the second public address are dead, those on the first work" "DNAT for 198.51.100.5, but gw has not that address nor answers ARP for it: the provider's side finds nobody"
  typical
  rules <<'R'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.5 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -s 192.168.1.20 -o wan0 -j SNAT --to-source 198.51.100.5
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 443
  serve tcp pc 443
  ask client tcp 198.51.100.1 443 3
  ask client tcp 198.51.100.5 443 5
}

plant-connects-then-hangs() {
  fault "connections to the plant network open and then hang" "triangle: pc goes by gw to the router 192.168.1.2, answers come from it directly; gw sees one direction, takes the third packet for INVALID and drops it in FORWARD"
  typical
  with_isp
  router r2
  node plc
  plug lan r2 lan0 192.168.1.2/24
  link r2 plant0 10.30.0.1/24 plc eth0 10.30.0.10/24
  default plc 10.30.0.1
  set_ gw net.ipv4.conf.{all,default,lan0,wan0}.send_redirects=0
  gw ip route add 10.30.0.0/24 via 192.168.1.2
  ruleset <<'R'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state invalid drop; ct state established,related accept; iifname "lan0" accept; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
R
  serve tcp plc 502
  serve tcp web 443
  ask pc tcp 10.30.0.10 502 4
  ask pc tcp 203.0.113.80 443 3
}

some-desks-offline() {
  fault "computers with high addresses (from .128) have no internet, the others do" "lan0 has 192.168.1.1/25: gw sends answers to 192.168.1.200 by the default route back to the provider"
  typical
  with_isp
  node desk
  plug lan desk eth0 192.168.1.200/24
  default desk 192.168.1.1
  gw ip addr del 192.168.1.1/24 dev lan0
  gw ip addr add 192.168.1.1/25 dev lan0
  rules <<'R'
-t nat -A POSTROUTING -s 192.168.0.0/16 -o wan0 -j MASQUERADE
R
  serve tcp web 443
  serve udp web 53
  ask pc tcp 203.0.113.80 443 4
  ask desk tcp 203.0.113.80 443 4
  ask desk udp 203.0.113.80 53 2
}

phones-do-not-ring() {
  fault "phones can call out, but most incoming calls do not ring" "UDP timeouts tuned down to 4 s, phones send their keepalive every 15 s: the mapping is gone when the provider calls, and INPUT drops the call"
  typical
  set_ gw net.netfilter.nf_conntrack_udp_timeout=4 net.netfilter.nf_conntrack_udp_timeout_stream=4
  rules <<'R'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i wan0 -j DROP
R
  local i
  for i in 1 2 3 4 5 6; do
    ask pc udp 198.51.100.10 507$i 0.066 port=506$i echo=y after=$i.6
    ask client udp 198.51.100.1 506$i 0.18 port=507$i after=$i.1
  done
  sleep 5
}

no-internet-after-reboot() {
  fault "after the reboot nothing from outside arrives, in neither direction does anything work" "ingress shaping redirects wan0 to ifb0, which is down since the reboot: tc drops all IPv4 that arrives"
  typical
  gw ip link add ifb0 type ifb
  gw tc qdisc add dev ifb0 root tbf rate 50mbit burst 64k latency 50ms
  gw tc qdisc add dev wan0 handle ffff: ingress
  gw tc filter add dev wan0 parent ffff: protocol ip u32 match u32 0 0 action mirred egress redirect dev ifb0
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 3
  ask pc tcp 198.51.100.10 443 5
}

vm-port-forward() {
  fault "the port forward to the virtual machine is refused, or times out, from outside" "libvirt's chain LIBVIRT_FWI rejects new connections to virbr0 before the accept that was appended to FORWARD"
  router gw
  node client vm
  switch wan virt
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  plug virt gw virbr0 192.168.122.1/24
  plug virt vm eth0 192.168.122.50/24
  default vm 192.168.122.1
  rules <<'R'
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -d 192.168.122.50/32 -p tcp --dport 22 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 2222 -j DNAT --to-destination 192.168.122.50:22
-t nat -A POSTROUTING -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
R
  serve tcp vm 22
  serve tcp client 443
  ask client tcp 198.51.100.1 2222 3
  ask vm tcp 198.51.100.10 443 3
}

guest-wifi() {
  fault "the new guest wifi has no internet, staff have" "masquerade names 192.168.1.0/24 only; guests of 192.168.50.0/24 leave untranslated, the provider drops private sources"
  typical
  with_isp
  node guest
  switch wifi
  plug wifi gw guest0 192.168.50.1/24
  plug wifi guest eth0 192.168.50.77/24
  default guest 192.168.50.1
  ruleset <<'R'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname { "lan0", "guest0" } oifname "wan0" accept; }
  chain post { type nat hook postrouting priority srcnat; ip saddr 192.168.1.0/24 oifname "wan0" counter masquerade; }
}
R
  serve tcp web 443
  serve udp web 53
  ask pc tcp 203.0.113.80 443 4
  ask guest tcp 203.0.113.80 443 3
  ask guest udp 203.0.113.80 53 3
}

half-of-it-hangs() {
  fault "since traffic is balanced over two uplinks, more than half of the connections time out, others open only after a second (the repeated SYN took the other line)" "multipath default route (the second line weighs 3), but one SNAT to the first line's address for both: the second provider drops that source"
  typical
  with_isp
  router isp2
  switch dsl
  plug dsl isp2 eth0 192.0.2.254/24
  plug dsl gw dsl0 192.0.2.1/24
  link isp2 web0 203.0.114.254/24 web eth1 203.0.114.80/24
  on web ip addr add 203.0.115.80/32 dev lo
  on isp ip route add 203.0.115.80 via 203.0.113.80
  on isp2 ip route add 203.0.115.80 via 203.0.114.80
  on web ip route add 192.0.2.0/24 via 203.0.114.254
  on isp2 iptables -A FORWARD -i eth0 ! -s 192.0.2.0/24 -j DROP
  set_ gw net.ipv4.fib_multipath_hash_policy=1
  gw ip route replace default nexthop via 198.51.100.254 dev wan0 nexthop via 192.0.2.254 dev dsl0 weight 3
  rules <<'R'
-t nat -A POSTROUTING -s 192.168.1.0/24 ! -d 192.168.0.0/16 -j SNAT --to-source 198.51.100.1
R
  serve tcp web 443
  ask pc tcp 203.0.115.80 443 8
}

# ---------------------------------------------------------------- healthy

scans-dropped() {
  healthy "a scanner knocks at closed ports and INPUT drops it, ident is rejected; the service works"
  typical
  node scanner
  plug wan scanner eth0 198.51.100.99/24
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-P INPUT DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp --dport 113 -j REJECT --reject-with tcp-reset
-A INPUT -i lan0 -j ACCEPT
R
  serve tcp server 443
  ask client tcp 198.51.100.1 443 5
  for port in 22 23 445 3389 8080; do ask scanner tcp 198.51.100.1 $port 2; done
  ask scanner tcp 198.51.100.1 113 1
}

allow-list() {
  healthy "a forwarded port for partners only: others are dropped in FORWARD on purpose, by a named set; a bot tries"
  typical
  node bot
  plug wan bot eth0 198.51.100.99/24
  ruleset <<'R'
table inet fw {
  set partners { type ipv4_addr; flags interval; elements = { 198.51.100.0/28, 203.0.113.0/24 } }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 8443 dnat ip to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname "lan0" accept
    tcp dport 8443 ip saddr != @partners counter drop comment "partners only"
    ct status dnat accept
  }
}
R
  serve tcp server 8443
  serve tcp client 443
  ask client tcp 198.51.100.1 8443 6
  ask pc tcp 198.51.100.10 443 3
  ask bot tcp 198.51.100.1 8443 0.3
}

backup-uplink-down() {
  healthy "the backup line is unplugged: its interface has no carrier, its route is linkdown, its rules are unused"
  typical
  with_isp
  switch lte
  plug lte gw lte0 192.0.2.1/24
  gw ip route add default via 192.0.2.254 dev lte0 metric 500
  gw ip route add default via 192.0.2.254 dev lte0 table 200
  gw ip rule add from 192.0.2.1 table 200
  ip -n lte link set gw-lte0 down
  rules <<'R'
-t nat -A PREROUTING -i lte0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o lte0 -j SNAT --to-source 192.0.2.1
R
  serve tcp server 443
  serve tcp web 443
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 203.0.113.80 443 5
  ask pc ping 203.0.113.80 - 1
}

triangle-works() {
  healthy "asymmetric: pc reaches the plant by gw and another router, answers come past gw; those nets are not tracked"
  typical
  with_isp
  router r2
  node plc
  plug lan r2 lan0 192.168.1.2/24
  link r2 plant0 10.30.0.1/24 plc eth0 10.30.0.10/24
  default plc 10.30.0.1
  set_ gw net.ipv4.conf.{all,default,lan0,wan0}.send_redirects=0
  gw ip route add 10.30.0.0/24 via 192.168.1.2
  ruleset <<'R'
table inet fw {
  chain raw { type filter hook prerouting priority raw; iifname "lan0" ip daddr 10.30.0.0/24 notrack; }
  chain forward { type filter hook forward priority filter; policy drop; iifname "lan0" oifname "lan0" accept; ct state invalid drop; ct state established,related accept; iifname "lan0" accept; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
R
  serve tcp plc 502
  serve tcp web 443
  ask pc tcp 10.30.0.10 502 5
  ask pc tcp 203.0.113.80 443 4
}

shaped-line() {
  healthy "the line is shaped to 20 Mbit/s and its queue drops what TCP sends too fast; all transfers end in time"
  typical
  gw tc qdisc add dev wan0 root handle 1: htb default 20 r2q 200
  gw tc class add dev wan0 parent 1: classid 1:1 htb rate 20mbit burst 32k
  gw tc class add dev wan0 parent 1:1 classid 1:10 htb rate 5mbit ceil 20mbit prio 0 burst 16k
  gw tc class add dev wan0 parent 1:1 classid 1:20 htb rate 15mbit ceil 20mbit prio 1 burst 16k
  gw tc qdisc add dev wan0 parent 1:20 handle 20: bfifo limit 70k
  gw tc filter add dev wan0 parent 1: protocol ip prio 1 u32 match ip protocol 17 0xff flowid 1:10
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 443
  serve udp client 53
  ask client tcp 198.51.100.1 443 3 down=400000 timeout=15
  ask pc udp 198.51.100.10 53 4
}

tuned-timeouts() {
  healthy "short timeouts on purpose; sessions and phones send in time, so nothing is lost"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=30 net.netfilter.nf_conntrack_udp_timeout=5 \
    net.netfilter.nf_conntrack_udp_timeout_stream=10 net.netfilter.nf_conntrack_tcp_timeout_time_wait=5 \
    net.netfilter.nf_conntrack_tcp_timeout_close_wait=5 net.netfilter.nf_conntrack_tcp_timeout_fin_wait=10
  rules <<'R'
-A FORWARD -p tcp ! --syn -m state --state NEW -j DROP
-A FORWARD -m state --state INVALID -j DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp client 5432
  serve udp client 5060
  ask pc tcp 198.51.100.10 5432 3 requests=4 gap=2
  ask pc udp 198.51.100.10 5060 1 port=5060
  ask server udp 198.51.100.10 5060 3
}

one-way-datagrams() {
  healthy "netflow and syslog through DNAT and out through SNAT: datagrams that nobody ever answers"
  typical
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p udp -m multiport --dports 514,2055 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve udp client 4739 answer=no
  serve tcp client 443
  ask client udp 198.51.100.1 514 10 answer=no
  ask client udp 198.51.100.1 2055 20 port=50000 up=1400
  ask pc udp 198.51.100.10 4739 5 answer=no
  ask pc tcp 198.51.100.10 443 2
}

balancer-checks() {
  healthy "a load balancer's checks open and reset at once, some clients end by reset; INVALID is dropped too"
  typical
  node lb
  plug wan lb eth0 198.51.100.40/24
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -m conntrack --ctstate INVALID -j DROP
R
  serve tcp server 8080
  ask lb tcp 198.51.100.1 80 5 requests=0 abort=1
  ask client tcp 198.51.100.1 80 5
  ask client tcp 198.51.100.1 80 3 abort=1 down=300000
}

duplicates-and-leftovers() {
  healthy "the same DNAT three times, a later one to a server that is gone and is never reached, a dormant table that would drop all"
  typical
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.99
-t nat -A PREROUTING -i eth7 -p tcp --dport 25 -j DNAT --to-destination 192.168.1.98
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan0 -s 192.168.1.0/24 -j SNAT --to-source 198.51.100.1
R
  ruleset <<'R'
table inet panic {
  flags dormant
  chain forward { type filter hook forward priority -10; policy drop; }
  chain input { type filter hook input priority -10; policy drop; }
}
R
  serve tcp server 443
  serve tcp client 80
  ask client tcp 198.51.100.1 443 6
  ask pc tcp 198.51.100.10 80 4
}

port-knocking() {
  healthy "port knocking: the knocks at 7000 and 8000 are dropped on purpose, then ssh is forwarded"
  typical
  ruleset <<'R'
table ip knock {
  set one { type ipv4_addr; timeout 10s; }
  set open { type ipv4_addr; timeout 60s; }
  chain pre {
    type filter hook prerouting priority mangle; policy accept;
    iifname "wan0" udp dport 7000 add @one { ip saddr } drop
    iifname "wan0" udp dport 8000 ip saddr @one add @open { ip saddr } drop
    iifname "wan0" tcp dport 22 ip saddr != @open drop
  }
  chain nat { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 22 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
R
  serve tcp server 22
  ask client udp 198.51.100.1 7000 0.5 answer=no
  ask client udp 198.51.100.1 8000 0.5 answer=no after=1
  ask client tcp 198.51.100.1 22 4 after=2
}

limits-that-do-not-bite() {
  healthy "SYN limits, a limit of connections per source and hashlimit, all far above the traffic"
  typical
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-N SYN
-A FORWARD -i wan0 -p tcp --syn -j SYN
-A SYN -p tcp -m connlimit --connlimit-above 200 -j REJECT --reject-with tcp-reset
-A SYN -m hashlimit --hashlimit-above 200/sec --hashlimit-burst 400 --hashlimit-mode srcip --hashlimit-name syn -j DROP
-A SYN -m limit --limit 500/sec --limit-burst 1000 -j RETURN
-A SYN -j DROP
-A INPUT -p icmp --icmp-type echo-request -m limit --limit 10/sec -j ACCEPT
-A INPUT -i wan0 -p icmp --icmp-type echo-request -j DROP
R
  serve tcp server 443
  ask client tcp 198.51.100.1 443 30
  ask client ping 198.51.100.1 - 2
}

blackholes-on-purpose() {
  healthy "private networks end in blackhole routes on purpose; a printer driver still looks for a device of long ago"
  typical
  with_isp
  gw ip route add blackhole 10.0.0.0/8
  gw ip route add unreachable 172.16.0.0/12
  gw ip route add prohibit 192.168.0.0/16
  ruleset <<'R'
table inet fw {
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; iifname "lan0" accept; ct status dnat accept; }
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat ip to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
R
  serve tcp server 443
  serve tcp web 443
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 203.0.113.80 443 5
  ask pc tcp 10.5.6.7 9100 0.4
}

two-uplinks-strict() {
  healthy "two uplinks with strict rp_filter that work by policy routing; spoofed sources arrive on wan0 and are dropped"
  typical
  with_isp
  router isp2
  node mobile spoofer
  switch dsl
  plug wan spoofer eth0 198.51.100.77/24,192.168.1.177/32
  plug dsl isp2 eth0 192.0.2.254/24
  plug dsl gw dsl0 192.0.2.1/24
  link isp2 m0 198.18.5.1/24 mobile eth0 198.18.5.10/24
  default mobile 198.18.5.1
  gw ip route add 198.18.0.0/15 via 192.0.2.254
  set_ gw net.ipv4.conf.{all,default,wan0,dsl0,lan0}.rp_filter=1
  gw ip route add default via 192.0.2.254 dev dsl0 table 200
  gw ip rule add from 192.0.2.1 table 200
  rules <<'R'
-t nat -A PREROUTING -p tcp -m addrtype --dst-type LOCAL --dport 443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o dsl0 -j MASQUERADE
R
  serve tcp server 443
  serve tcp web 443
  ask client tcp 198.51.100.1 443 3
  ask mobile tcp 192.0.2.1 443 5
  ask pc tcp 203.0.113.80 443 3
  ask spoofer udp 198.51.100.1 53 2 from=192.168.1.177 answer=no
}

npt-and-privacy() {
  healthy "NPTv6 of a ULA network next to routed IPv6 and NAT44; ICMPv6 is filtered by type as RFC 4890 says"
  typical 6
  gw ip addr add fd00:1::1/64 dev lan0
  on pc ip addr add fd00:1::20/64 dev eth0
  on client ip route add 2001:db8:5::/64 via 2001:db8:1::1
  on pc ip route replace 2001:db8:1::/64 via fd00:1::1 src fd00:1::20
  rules <<'R'
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:5::/64
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:5::/64 -j NETMAP --to fd00:1::/64
-6 -P FORWARD DROP
-6 -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A FORWARD -p ipv6-icmp --icmpv6-type packet-too-big -j ACCEPT
-6 -A FORWARD -i lan0 -j ACCEPT
-6 -A FORWARD -d 2001:db8:2::10 -p tcp --dport 443 -j ACCEPT
-6 -P INPUT DROP
-6 -A INPUT -p ipv6-icmp --icmpv6-type neighbour-solicitation -j ACCEPT
-6 -A INPUT -p ipv6-icmp --icmpv6-type neighbour-advertisement -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 443 bind=
  serve tcp client 443 bind=
  ask client tcp 2001:db8:2::10 443 4
  ask pc tcp 2001:db8:1::10 443 4
  ask pc tcp 198.51.100.10 443 3
}

docker-leftovers() {
  healthy "a Docker host with networks without containers, published ports of stopped ones that nobody uses, isolation chains"
  router gw
  node client app db
  switch wan docker compose
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  gw ip link add docker0 up type bridge
  gw ip addr add 172.17.0.1/16 dev docker0
  plug compose gw br-51c0ffee 172.20.0.1/16
  plug compose app eth0 172.20.0.2/16
  plug compose db eth0 172.20.0.3/16
  default app 172.20.0.1; default db 172.20.0.1
  rules <<'R'
-P FORWARD DROP
-N DOCKER-ISO-1
-N DOCKER-ISO-2
-A FORWARD -j DOCKER-ISO-1
-A DOCKER-ISO-1 -i docker0 ! -o docker0 -j DOCKER-ISO-2
-A DOCKER-ISO-1 -i br-51c0ffee ! -o br-51c0ffee -j DOCKER-ISO-2
-A DOCKER-ISO-2 -o docker0 -j DROP
-A DOCKER-ISO-2 -o br-51c0ffee -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i br-51c0ffee -j ACCEPT
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -d 172.20.0.2/32 -o br-51c0ffee -p tcp --dport 80 -j ACCEPT
-A FORWARD -d 172.17.0.4/32 -o docker0 -p tcp --dport 9000 -j ACCEPT
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 8080 -j DNAT --to-destination 172.20.0.2:80
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport 9000 -j DNAT --to-destination 172.17.0.4:9000
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t nat -A POSTROUTING -s 172.20.0.0/16 ! -o br-51c0ffee -j MASQUERADE
R
  serve tcp app 80
  serve tcp db 5432
  serve tcp client 443
  ask client tcp 198.51.100.1 8080 6
  ask app tcp 198.51.100.10 443 3
  ask app tcp 172.20.0.3 5432 5
}

vpn-exempt() {
  healthy "the VPN's traffic is exempt from masquerade and leaves with private addresses; rules and passthrough policies for an IPsec that is not used"
  typical
  with_isp
  with_site
  gw ip xfrm policy add dir out src 192.168.1.0/24 dst 192.168.1.0/24 action allow priority 100
  gw ip xfrm policy add dir fwd src 192.168.1.0/24 dst 192.168.1.0/24 action allow priority 100
  rules <<'R'
-t nat -A POSTROUTING -m policy --dir out --pol ipsec -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 -d 10.20.0.0/24 -j ACCEPT
-t nat -A POSTROUTING -s 192.168.1.0/24 ! -d 192.168.1.0/24 -j MASQUERADE
-t mangle -A FORWARD -o wg0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1300
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wg0 -s 10.20.0.0/24 -o lan0 -j ACCEPT
R
  serve tcp hq 443
  serve tcp web 443
  serve tcp server 443
  ask pc tcp 10.20.0.10 443 4 up=5000
  ask hq tcp 192.168.1.10 443 2
  ask pc tcp 203.0.113.80 443 4
}

balanced-uplinks() {
  healthy "connections are balanced over two uplinks, each masqueraded by its own address; answers come back by either"
  typical
  with_isp
  router isp2
  switch dsl
  plug dsl isp2 eth0 192.0.2.254/24
  plug dsl gw dsl0 192.0.2.1/24
  link isp2 web0 203.0.114.254/24 web eth1 203.0.114.80/24
  on web ip addr add 203.0.115.80/32 dev lo
  on isp ip route add 203.0.115.80 via 203.0.113.80
  on isp2 ip route add 203.0.115.80 via 203.0.114.80
  on web ip route add 192.0.2.0/24 via 203.0.114.254
  set_ gw net.ipv4.fib_multipath_hash_policy=1 net.ipv4.conf.{all,wan0,dsl0}.rp_filter=2
  gw ip route replace default nexthop via 198.51.100.254 dev wan0 nexthop via 192.0.2.254 dev dsl0
  rules <<'R'
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
-t nat -A POSTROUTING -o dsl0 -j SNAT --to-source 192.0.2.1
R
  serve tcp web 443
  ask pc tcp 203.0.115.80 443 8
  ask server tcp 203.0.115.80 443 2 down=100000
}

tenants-with-the-same-network() {
  healthy "two tenants both have 192.168.1.0/24: conntrack zones for the original direction, marks and tables keep them apart"
  typical
  node other
  switch lan2
  plug lan2 gw lan1 -
  plug lan2 other eth0 192.168.1.20/24
  default other 192.168.1.1
  gw ip addr add 192.168.1.1/32 dev lan1
  gw ip route add 192.168.1.0/24 dev lan0 table 101
  gw ip route add 192.168.1.0/24 dev lan1 table 102
  gw ip rule add fwmark 1 table 101
  gw ip rule add fwmark 2 table 102
  ruleset <<'R'
table ip tenants {
  chain raw { type filter hook prerouting priority raw; iifname "lan0" ct original zone set 1; iifname "lan1" ct original zone set 2; }
  chain marks {
    type filter hook prerouting priority mangle;
    iifname "lan0" ct mark set 1
    iifname "lan1" ct mark set 2
    iifname "wan0" meta mark set ct mark
  }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade fully-random; }
}
R
  serve tcp client 443
  serve udp client 53
  ask pc tcp 198.51.100.10 443 4
  ask other tcp 198.51.100.10 443 4
  ask other udp 198.51.100.10 53 3
}

one-to-one-by-proxy-arp() {
  healthy "1:1 NAT for addresses that no interface has: gw answers ARP for them by proxy entries"
  typical
  set_ gw net.ipv4.conf.wan0.proxy_arp=0 net.ipv4.neigh.wan0.proxy_delay=0
  gw ip route add 198.51.100.5 dev lan0
  gw ip route add 198.51.100.6 dev lan0
  gw ip neigh add proxy 198.51.100.5 dev wan0
  gw ip neigh add proxy 198.51.100.6 dev wan0
  rules <<'R'
-t nat -A PREROUTING -d 198.51.100.5 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -d 198.51.100.6 -j DNAT --to-destination 192.168.1.20
-t nat -A POSTROUTING -s 192.168.1.10 -o wan0 -j SNAT --to-source 198.51.100.5
-t nat -A POSTROUTING -s 192.168.1.20 -o wan0 -j SNAT --to-source 198.51.100.6
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
R
  serve tcp server 443
  serve tcp pc 443
  serve tcp client 443
  ask client tcp 198.51.100.5 443 4
  ask client tcp 198.51.100.6 443 3
  ask pc tcp 198.51.100.10 443 3
}

clamped-overlay() {
  healthy "the way to the server is an overlay with MTU 1450: MSS is clamped, ICMP is admitted, uploads and downloads work"
  router gw node2
  node client pod
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24
  link gw eth1 10.0.0.1/24 node2 eth0 10.0.0.2/24
  on gw ip link add vx0 type vxlan id 7 dstport 4789 local 10.0.0.1 remote 10.0.0.2
  on node2 ip link add vx0 type vxlan id 7 dstport 4789 local 10.0.0.2 remote 10.0.0.1
  address gw vx0 10.9.0.1/30
  address node2 vx0 10.9.0.2/30
  link node2 cni0 10.244.2.1/24 pod eth0 10.244.2.7/24
  default pod 10.244.2.1; default node2 10.9.0.1
  gw ip route add 10.244.2.0/24 via 10.9.0.2
  rules <<'R'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 10.244.2.7:8443
-t nat -A POSTROUTING -s 10.244.0.0/16 -o wan0 -j MASQUERADE
-t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
R
  serve tcp pod 8443
  serve tcp client 443
  ask client tcp 198.51.100.1 443 3 up=60000 down=60000
  ask client tcp 198.51.100.1 443 3
  ask pod tcp 198.51.100.10 443 2 up=20000
}
