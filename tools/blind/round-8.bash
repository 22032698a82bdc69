# shellcheck shell=bash
# Round 8: a month of tickets: 30 faults, 20 healthy hosts that look odd.

# inet 203.0.113.10 – core – isp 198.51.100.1 – wan0 198.51.100.2 gw lan0 192.168.1.1 – lan – server .10, pc .20
one_uplink() {
  router gw isp
  node inet server pc
  switch core lan
  plug core inet eth0 203.0.113.10/24
  plug core isp up0 203.0.113.1/24
  link isp dn0 198.51.100.1/30 gw wan0 198.51.100.2/30
  plug lan gw lan0 192.168.1.1/24
  plug lan server eth0 192.168.1.10/24
  plug lan pc eth0 192.168.1.20/24
  default gw 198.51.100.1
  default inet 203.0.113.1
  default server 192.168.1.1
  default pc 192.168.1.1
}
# and a second one: isp2 198.18.2.1 – wan2 198.18.2.2
two_uplinks() {
  one_uplink
  router isp2
  plug core isp2 up0 203.0.113.2/24
  link isp2 dn0 198.18.2.1/30 gw wan2 198.18.2.2/30
  default isp 203.0.113.10
  default isp2 203.0.113.10
  on inet ip route add 198.18.2.0/30 via 203.0.113.2
}
a_bridge() { # NAME ADDR, on the gateway
  ip -n gw link add "$1" up type bridge
  address gw "$1" "$2"
}
on_bridge() { # BRIDGE NODE ADDR GATEWAY
  link gw "veth-$2" - "$2" eth0 "$3"
  ip -n gw link set "veth-$2" master "$1"
  default "$2" "$4"
}
# client 198.51.100.10 – wan – 198.51.100.1 eth0 gw docker0 172.17.0.1; the rules as Docker writes them
docker_host() {
  router gw
  node client
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw eth0 198.51.100.1/24
  a_bridge docker0 172.17.0.1/16
  rules <<'EOF'
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-t nat -N DOCKER
-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
EOF
  docker_network docker0 172.17.0.0/16
}
docker_network() { # BRIDGE NETWORK
  rules <<EOF
-A FORWARD -o $1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o $1 -j DOCKER
-A FORWARD -i $1 ! -o $1 -j ACCEPT
-A FORWARD -i $1 -o $1 -j ACCEPT
-t nat -A POSTROUTING -s $2 ! -o $1 -j MASQUERADE
-t nat -A DOCKER -i $1 -j RETURN
EOF
}
docker_publish() { # BRIDGE PROTOCOL PORT CONTAINER PORT
  rules <<EOF
-t nat -A DOCKER ! -i $1 -p $2 --dport $3 -j DNAT --to-destination $4:$5
-A DOCKER -d $4/32 ! -i $1 -o $1 -p $2 --dport $5 -j ACCEPT
EOF
}
# gw and node2 are Kubernetes nodes: pod-a 10.244.1.11 and pod-b .12 on gw, pod-c 10.244.2.12 on node2
kube_nodes() {
  router gw node2
  node client pod-a pod-b pod-c
  switch net
  plug net client eth0 10.0.0.50/24
  plug net gw eth0 10.0.0.11/24
  plug net node2 eth0 10.0.0.12/24
  a_bridge cni0 10.244.1.1/24
  on_bridge cni0 pod-a 10.244.1.11/24 10.244.1.1
  on_bridge cni0 pod-b 10.244.1.12/24 10.244.1.1
  link node2 cni0 10.244.2.1/24 pod-c eth0 10.244.2.12/24
  default pod-c 10.244.2.1
  ip -n gw route add 10.244.2.0/24 via 10.0.0.12
  ip -n node2 route add 10.244.1.0/24 via 10.0.0.11
  rules <<'EOF'
-t nat -N KUBE-SERVICES
-t nat -N KUBE-POSTROUTING
-t nat -N KUBE-MARK-MASQ
-t nat -A PREROUTING -j KUBE-SERVICES
-t nat -A OUTPUT -j KUBE-SERVICES
-t nat -A POSTROUTING -j KUBE-POSTROUTING
-t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
-t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-t nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
EOF
}

# ---------------------------------------------------------------- faults

webmail-from-outside() {
  fault "webmail on port 8443 times out from outside; the web site on 80 works" "FORWARD policy DROP on gw: the accept rule names the outer port 8443, but after DNAT the packet goes to 192.168.1.10:443"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -o wan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 80 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 8443 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p tcp --dport 8443 -j DNAT --to-destination 192.168.1.10:443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  serve tcp server 443
  ask client tcp 198.51.100.1 8443 4
  ask client tcp 198.51.100.1 80 4
}

published-port-dead-since-reboot() {
  fault "the container published on port 8080 times out; everything Docker shows is right" "the distribution's nftables.conf (table inet filter, forward policy drop) drops in gw what Docker's iptables rules accept: an accept there does not end the other table's chain"
  docker_host
  node web
  on_bridge docker0 web 172.17.0.2/16 172.17.0.1
  docker_publish docker0 tcp 8080 172.17.0.2 80
  ruleset <<'EOF'
table inet filter {
  chain input { type filter hook input priority filter; policy drop;
    ct state established,related accept
    iif lo accept
    meta l4proto { icmp, ipv6-icmp } accept
    tcp dport 22 accept
  }
  chain forward { type filter hook forward priority filter; policy drop; }
}
EOF
  serve tcp web 80
  ask client tcp 198.51.100.1 8080 6
}

containers-cannot-download() {
  fault "containers cannot fetch anything from the internet; the published port works for the admins" "DOCKER-USER drops all that comes in by eth0 unless it is from the admins' 198.51.100.64/28, without letting established connections through: the answers (SYN+ACK) to the containers are dropped in gw"
  docker_host
  node web
  on_bridge docker0 web 172.17.0.2/16 172.17.0.1
  docker_publish docker0 tcp 8080 172.17.0.2 80
  ip -n client addr add 198.51.100.70/24 dev eth0
  rules <<'EOF'
-A DOCKER-USER -i eth0 ! -s 198.51.100.64/28 -j DROP
-A DOCKER-USER -j RETURN
EOF
  serve tcp web 80
  serve tcp client 443
  ask web tcp 198.51.100.10 443 4
  ask client tcp 198.51.100.1 8080 3 from=198.51.100.70
}

ssh-to-vm-refused() {
  fault "ssh to the virtual machine through port 2222 of the host is refused at once; the machine itself has internet" "libvirt's LIBVIRT_FWI rejects (port unreachable) new connections into virbr0 before the user's accept rule, which stands behind it in FORWARD"
  router gw
  node client vm
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw enp3s0 198.51.100.1/24
  a_bridge virbr0 192.168.122.1/24
  on_bridge virbr0 vm 192.168.122.45/24 192.168.122.1
  rules <<'EOF'
-N LIBVIRT_FWI
-N LIBVIRT_FWO
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -d 192.168.122.45 -p tcp --dport 22 -j ACCEPT
-t nat -A PREROUTING -i enp3s0 -p tcp --dport 2222 -j DNAT --to-destination 192.168.122.45:22
-t nat -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
EOF
  serve tcp vm 22
  serve tcp client 443
  ask client tcp 198.51.100.1 2222 3
  ask vm tcp 198.51.100.10 443 2
}

site-works-everywhere-but-in-the-office() {
  fault "the company's web site times out from PCs in the office, from outside it works" "no hairpin SNAT on gw: the PC's connection to 198.51.100.1 is sent back to the server in the same network, whose answer goes straight to the PC with another source address"
  typical
  ruleset <<'EOF'
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat;
    ip daddr 198.51.100.1 tcp dport 443 dnat to 192.168.1.10
  }
  chain postrouting { type nat hook postrouting priority srcnat;
    oifname "wan0" masquerade
  }
}
EOF
  serve tcp server 443
  ask client tcp 198.51.100.1 443 6
  ask pc tcp 198.51.100.1 443 4
}

all-web-pages-show-our-own-site() {
  fault "PCs get the company's own site whatever http page they open" "gw's DNAT rule for port 80 names neither interface nor destination: it also takes what the PCs send to the internet"
  typical
  node shop
  link gw dmz0 10.10.0.1/24 shop eth0 10.10.0.10/24
  default shop 10.10.0.1
  rules <<'EOF'
-t nat -A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.10.0.10:80
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp shop 80
  serve tcp client 80
  serve tcp client 443
  ask pc tcp 198.51.100.10 80 4 want=client
  ask pc tcp 198.51.100.10 443 3 want=client
  ask client tcp 198.51.100.1 80 4 want=shop
}

vpn-users-have-no-internet() {
  fault "who is dialled in by VPN reaches the office but not the internet" "the masquerade rule for 10.8.0.0/24 still names eth0, the uplink's name on the old machine: packets leave gw by wan0 with source 10.8.0.x and nobody answers them"
  one_uplink
  node roadwarrior
  link gw tun0 10.8.0.1/24 roadwarrior tun0 10.8.0.6/24
  default roadwarrior 10.8.0.1
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -s 10.8.0.0/24 -o eth0 -j MASQUERADE
EOF
  serve tcp inet 443
  serve udp inet 53
  serve tcp server 445
  ask roadwarrior udp 203.0.113.10 53 3
  ask roadwarrior tcp 203.0.113.10 443 3
  ask roadwarrior tcp 192.168.1.10 445 2
  ask pc tcp 203.0.113.10 443 3
}

guests-offline-since-upgrade() {
  fault "the guest network has no internet since the system upgrade, though it still resolves names at the gateway; the office network works" "forwarding is 0 on guest0 (networkd set it for that interface, net.ipv4.ip_forward is 1): gw drops what guests send on as it arrives"
  one_uplink
  node guest
  link gw guest0 192.168.50.1/24 guest wlan0 192.168.50.23/24
  default guest 192.168.50.1
  set_ gw net.ipv4.conf.guest0.forwarding=0
  ruleset <<'EOF'
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat;
    oifname "wan0" ip saddr { 192.168.1.0/24, 192.168.50.0/24 } masquerade
  }
}
EOF
  serve udp gw 53
  serve tcp inet 443
  ask guest udp 192.168.50.1 53 2
  ask guest tcp 203.0.113.10 443 5
  ask pc tcp 203.0.113.10 443 4
}

game-server-gone() {
  fault "friends cannot join the game server (udp 27015); the web page of it works" "gw forwards to 192.168.1.50, the address that the server had before its last DHCP lease; nothing there answers ARP"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p udp --dport 27015 -j DNAT --to-destination 192.168.1.50
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve udp server 27015
  serve tcp server 80
  ask client udp 198.51.100.1 27015 5
  ask client tcp 198.51.100.1 80 2
}

refused-for-some-customers() {
  fault "customers with IPv6 get 'connection refused', those with IPv4 see the site" "gw's IPv6 DNAT is right, but the web server behind it listens on 0.0.0.0 only and answers IPv6 with RST"
  typical 6
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination [2001:db8:2::10]:8080
EOF
  serve tcp server 8080
  ask client tcp 198.51.100.1 80 5
  ask client tcp 2001:db8:1::1 80 5
}

camera-unreachable-since-new-router() {
  fault "the camera cannot be opened from outside since the router was replaced; the NAS can" "gw forwards well, but the camera's default gateway is still 192.168.1.254, the old router that is gone: it asks ARP for it, and its answers never reach gw"
  typical
  node camera
  plug lan camera eth0 192.168.1.64/24
  default camera 192.168.1.254
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 5000 -j DNAT --to-destination 192.168.1.10:5000
-t nat -A PREROUTING -i wan0 -p tcp --dport 554 -j DNAT --to-destination 192.168.1.64:554
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 5000
  serve tcp camera 554
  ask client tcp 198.51.100.1 5000 3
  ask client tcp 198.51.100.1 554 3
  ask pc tcp 192.168.1.64 554 1
}

remote-desktop-only-inside() {
  fault "remote desktop from home fails with 'no route to host', from the office it works" "the server's own firewall accepts 3389 from 192.168.1.0/24 only and rejects the forwarded clients (their own address is kept) with host-prohibited"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 33890 -j DNAT --to-destination 192.168.1.10:3389
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  on server iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
  on server iptables -A INPUT -s 192.168.1.0/24 -p tcp --dport 3389 -j ACCEPT
  on server iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited
  serve tcp server 3389
  ask client tcp 198.51.100.1 33890 3
  ask pc tcp 192.168.1.10 3389 1
}

second-line-dead-for-customers() {
  fault "the shop times out through the second line's address, through the first it works" "strict rp_filter on gw: the way back to the clients is wan0, so what comes in by wan2 is dropped as it arrives (the rules that send answers back by wan2 are right, but marks do not count here)"
  two_uplinks
  set_ gw net.ipv4.conf.{all,wan0,wan2}.rp_filter=1
  gw ip route add default via 198.18.2.1 table 102
  gw ip rule add fwmark 2 table 102
  rules <<'EOF'
-t mangle -A PREROUTING -i wan2 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan2 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan+ -j MASQUERADE
EOF
  serve tcp server 443
  ask inet tcp 198.51.100.2 443 5
  ask inet tcp 198.18.2.2 443 5
}

no-sound-in-calls() {
  fault "calls are set up, but callers are not heard" "gw forwards udp 10000-10100, the PBX hands out 10000-20000 and waits for the caller's first packet: media to 12044 ends in gw's INPUT policy DROP"
  typical
  rules <<'EOF'
-P INPUT DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i lan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p udp --dport 5060 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p udp --dport 10000:10100 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 5060
  serve udp server 12044
  ask client udp 198.51.100.1 5060 2
  ask client udp 198.51.100.1 12044 30 port=16384 up=172 down=172
}

plex-offline-since-vpn() {
  fault "the media server's forwarded port times out since the router has a VPN for outgoing traffic, which works" "policy routing as of wg-quick: all without the mark goes to table 51820, so also the answers of forwarded connections: they leave by wg0 instead of wan0 and the VPN provider drops them"
  one_uplink
  router vpn
  plug core vpn up0 203.0.113.3/24
  link vpn dn0 10.64.0.1/24 gw wg0 10.64.0.2/24
  on vpn iptables -t nat -A POSTROUTING -s 10.64.0.2 -o up0 -j MASQUERADE
  on vpn iptables -A FORWARD -i dn0 ! -s 10.64.0.2 -j DROP
  gw ip route add default dev wg0 via 10.64.0.1 table 51820
  gw ip rule add not fwmark 0xca6c table 51820
  gw ip rule add table main suppress_prefixlength 0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 32400 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wg0 -j MASQUERADE
EOF
  serve tcp server 32400
  serve tcp inet 443
  ask inet tcp 198.51.100.2 32400 4
  ask pc tcp 203.0.113.10 443 3
}

half-the-internet-is-slow() {
  fault "about half of all connections to the internet time out, pages load on the second try" "multipath default route over two providers; the second one's router still answers ARP, but nothing gets through beyond it, and nothing on gw watches that"
  two_uplinks
  on isp2 iptables -P FORWARD DROP
  set_ gw net.ipv4.fib_multipath_hash_policy=1
  gw ip route replace default nexthop via 198.51.100.1 dev wan0 nexthop via 198.18.2.1 dev wan2
  rules <<'EOF'
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan2 -j MASQUERADE
EOF
  serve tcp inet 443
  serve udp inet 53
  ask pc tcp 203.0.113.10 443 8
  ask pc udp 203.0.113.10 53 5
}

uploads-never-finish() {
  fault "uploads and mails with attachments hang, pages open" "a hop beyond the provider takes 1400 bytes only; its 'fragmentation needed' arrives at gw and is dropped by the raw rule against ICMP, so that the PCs go on with 1500"
  one_uplink
  ip -n isp route replace 203.0.113.0/24 dev up0 src 203.0.113.1 mtu 1400
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -p icmp -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-P FORWARD DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp inet 443
  ask pc tcp 203.0.113.10 443 3 up=40000
  ask pc tcp 203.0.113.10 443 3
}

ftp-listing-hangs() {
  fault "ftp clients log in, then the directory listing fails" "no FTP helper on gw: the server's 227 answer with 192.168.1.10 is not rewritten, and no data connection is expected"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 21 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp server 21
  ask client ftp 198.51.100.1 21 3
}

trunk-down-since-update() {
  fault "the SIP trunk gets no answer since the PBX container was made anew; other phones can call" "the trunk sends on and on from one port: its connection entry on gw still leads to the old container 172.17.0.2, the new rule (172.17.0.5) counts for new flows only"
  docker_host
  node pbx phone
  plug wan phone eth0 198.51.100.33/24
  on_bridge docker0 pbx 172.17.0.5/16 172.17.0.1
  docker_publish docker0 udp 5060 172.17.0.2 5060
  serve udp pbx 5060
  ask client udp 198.51.100.1 5060 4 port=5060
  sleep 2
  gw iptables -t nat -D DOCKER 2
  gw iptables -D DOCKER 1
  docker_publish docker0 udp 5060 172.17.0.5 5060
  ask phone udp 198.51.100.1 5060 2
}

dns-in-pods-times-out-half-the-time() {
  fault "half of the DNS queries of a pod time out" "bridge-nf-call-iptables is 0 on gw: when the service's address leads to pod-b on the same node, the answer goes straight over the bridge cni0 and is not translated back"
  kube_nodes
  set_ gw net.bridge.bridge-nf-call-iptables=0
  rules <<'EOF'
-t nat -N KUBE-SVC-TCOU7JCQXEZGVUNU
-t nat -N KUBE-SEP-LASJGFFJP3UOS6RQ
-t nat -N KUBE-SEP-YIL6JZP7A3QYXJU2
-t nat -A KUBE-SERVICES -d 10.96.0.10/32 -p udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU
-t nat -A KUBE-SVC-TCOU7JCQXEZGVUNU -m statistic --mode random --probability 0.5 -j KUBE-SEP-LASJGFFJP3UOS6RQ
-t nat -A KUBE-SVC-TCOU7JCQXEZGVUNU -j KUBE-SEP-YIL6JZP7A3QYXJU2
-t nat -A KUBE-SEP-LASJGFFJP3UOS6RQ -p udp -j DNAT --to-destination 10.244.1.12:53
-t nat -A KUBE-SEP-YIL6JZP7A3QYXJU2 -p udp -j DNAT --to-destination 10.244.2.12:53
EOF
  serve udp pod-b 53
  serve udp pod-c 53
  ask pod-a udp 10.96.0.10 53 8
}

second-public-address-dead() {
  fault "the new site on the additional address 198.51.100.9 cannot be reached, the one on the main address can" "gw has a DNAT rule for 198.51.100.9, but the address is on none of its interfaces and there is no proxy ARP: nobody answers the router's ARP requests"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -d 198.51.100.1 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A PREROUTING -d 198.51.100.9 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8081
-t nat -A POSTROUTING -o wan0 -j SNAT --to-source 198.51.100.1
EOF
  serve tcp server 8080
  serve tcp server 8081
  ask client tcp 198.51.100.1 80 4
  ask client tcp 198.51.100.9 80 4
}

nothing-new-opens() {
  fault "new connections in and out time out, old ones go on" "gw's connection table is full: a quarter of a million monitoring connections that were never closed stand in it as established, for five days each"
  typical
  local max
  max=$(gw sysctl -n net.netfilter.nf_conntrack_max)
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  awk -v n="$max" 'BEGIN { for (i = 0; i < n; i++) { a = "10.20." int(i / 256) % 256 "." i % 256; p = 40000 + int(i / 65536)
    print "-A -t 430000 -u SEEN_REPLY,ASSURED -s", a, "-d 10.30.0.5 -r 10.30.0.5 -q", a, "-p tcp --sport", p, "--dport 10051 --reply-port-src 10051 --reply-port-dst", p, "--state ESTABLISHED" } }' |
    gw conntrack -R - >/dev/null 2>&1 || true
  serve tcp server 80
  serve tcp client 443
  ask client tcp 198.51.100.1 80 5
  ask pc tcp 198.51.100.10 443 3
}

dns-drops-out-at-busy-times() {
  fault "most DNS queries of the subscriber's network get no answer" "the subscriber's share of ports on gw (a CGNAT, 128 ports) is used up: each query keeps one for 30 s, there are 50 a second; further packets find no free port and are dropped"
  one_uplink
  rules <<'EOF'
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -p tcp -j MASQUERADE --to-ports 20480-20607
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -p udp -j MASQUERADE --to-ports 20480-20607
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp inet 53
  ask pc udp 203.0.113.10 53 50
  sleep 3
}

site-sluggish-in-the-daytime() {
  fault "most visitors wait seconds or get no connection when it is busy" "an old syn-flood rule on gw lets 10 new connections a second through to the server, for all clients together; 40 come"
  typical
  rules <<'EOF'
-P FORWARD DROP
-N syn-flood
-A FORWARD -i wan0 -p tcp --syn -j syn-flood
-A syn-flood -m limit --limit 10/s --limit-burst 20 -j RETURN
-A syn-flood -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 80 -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 80
  ask client tcp 198.51.100.1 80 40
}

branch-office-hangs-after-connect() {
  fault "programs on PCs connect to the branch office's server, then hang; the internet works" "PCs send by gw to the branch router in the same network, which answers them directly: gw never sees the SYN+ACK, takes what follows for INVALID and its first FORWARD rule drops that"
  typical
  router branch
  node erp
  plug lan branch eth0 192.168.1.2/24
  link branch eth1 10.50.0.1/24 erp eth0 10.50.0.10/24
  default erp 10.50.0.1
  gw ip route add 10.50.0.0/24 via 192.168.1.2
  set_ gw net.ipv4.conf.{all,lan0}.send_redirects=0
  rules <<'EOF'
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-P FORWARD DROP
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp erp 1433
  serve tcp client 443
  ask pc tcp 10.50.0.10 1433 4
  ask pc tcp 198.51.100.10 443 3
}

admin-page-forward-hangs() {
  fault "the admin page on port 443 of the gateway times out, on the machine itself it opens" "DNAT to 127.0.0.1:8443 without route_localnet: gw's routing drops the packet as a martian"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 127.0.0.1:8443
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp gw 8443 bind=127.0.0.1
  serve tcp client 443
  ask client tcp 198.51.100.1 443 3
  ask gw tcp 127.0.0.1 8443 1
  ask pc tcp 198.51.100.10 443 2
}

ipv6-dead-since-hardening() {
  fault "everything by IPv6 is dead, IPv4 works" "gw's ip6tables INPUT policy DROP has no rule for ICMPv6: neighbour solicitations and advertisements are dropped, nobody can resolve gw nor gw anybody"
  typical 6
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-6 -t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination [2001:db8:2::10]:8080
-6 -P INPUT DROP
-6 -A INPUT -i lo -j ACCEPT
-6 -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-6 -A INPUT -p tcp --dport 22 -j ACCEPT
EOF
  serve tcp server 8080 bind=
  ask client tcp 198.51.100.1 80 3
  ask client tcp 2001:db8:1::1 80 5
}

cloud-forward-refused() {
  fault "port 443 of the cloud instance is refused, though a DNAT rule is there; the machines behind it have internet" "the rule on gw matches the public address 203.0.113.50, but the cloud has translated that to 10.0.0.5 before: it never matches, gw itself answers with RST"
  router gw igw
  node inet app
  link igw up0 203.0.113.50/24 inet eth0 203.0.113.10/24
  link igw vpc0 10.0.0.1/24 gw eth0 10.0.0.5/24
  link gw eth1 10.0.1.1/24 app eth0 10.0.1.10/24
  default gw 10.0.0.1
  default app 10.0.1.1
  on igw iptables -t nat -A PREROUTING -i up0 -d 203.0.113.50 -j DNAT --to-destination 10.0.0.5
  on igw iptables -t nat -A POSTROUTING -o up0 -s 10.0.0.5 -j SNAT --to-source 203.0.113.50
  rules <<'EOF'
-t nat -A PREROUTING -d 203.0.113.50 -p tcp --dport 443 -j DNAT --to-destination 10.0.1.10:443
-t nat -A POSTROUTING -s 10.0.1.0/24 -o eth0 -j MASQUERADE
EOF
  serve tcp app 443
  serve tcp inet 443
  ask inet tcp 203.0.113.50 443 4
  ask app tcp 203.0.113.10 443 2
}

database-sessions-freeze() {
  fault "database sessions work at first and hang after some seconds without a query" "nf_conntrack_tcp_timeout_established is 5 on gw (meant as days): idle sessions lose their entry, and as tcp_loose is 0 the next packet is INVALID, not translated, and dropped by INPUT"
  typical
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_established=5 net.netfilter.nf_conntrack_tcp_loose=0
  rules <<'EOF'
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 5432
  ask client tcp 198.51.100.1 5432 3 requests=4 gap=8
  sleep 10
}

branch-cannot-open-the-wiki() {
  fault "the wiki times out for the branch office (172.18.40.0/24), for all others it opens" "a compose network on gw took 172.18.0.0/16, which covers the branch's network: answers to it stay on the bridge (ARP without answer) instead of going to the router"
  docker_host
  router branch
  node wiki branchpc
  plug wan branch eth0 198.51.100.3/24
  link branch eth1 172.18.40.1/24 branchpc eth0 172.18.40.10/24
  default branchpc 172.18.40.1
  default gw 198.51.100.3
  a_bridge br-5e0c11a7d2f4 172.18.0.1/16
  docker_network br-5e0c11a7d2f4 172.18.0.0/16
  on_bridge br-5e0c11a7d2f4 wiki 172.18.0.2/16 172.18.0.1
  docker_publish br-5e0c11a7d2f4 tcp 80 172.18.0.2 3000
  serve tcp wiki 3000
  ask branchpc tcp 198.51.100.1 80 4
  ask client tcp 198.51.100.1 80 4
}

# ---------------------------------------------------------------- healthy

web-shop() {
  healthy "a scanner tries ports 23, 445 and 3389 of gw and times out: dropped on purpose; the shop is fine"
  typical
  ruleset <<'EOF'
table inet fw {
  chain input { type filter hook input priority filter; policy drop;
    ct state vmap { established : accept, related : accept, invalid : drop }
    iifname { "lo", "lan0" } accept
    icmp type echo-request limit rate 10/second accept
  }
  chain forward { type filter hook forward priority filter; policy drop;
    ct state vmap { established : accept, related : accept, invalid : drop }
    iifname "lan0" accept
    ct status dnat accept
  }
}
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname "wan0" tcp dport 443 dnat to 192.168.1.10; }
  chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
EOF
  ip -n client addr add 198.51.100.66/24 dev eth0
  serve tcp server 443
  ask client tcp 198.51.100.1 443 8
  for p in 23 445 3389; do ask client tcp 198.51.100.1 $p 3 from=198.51.100.66; done
}

admins-only() {
  healthy "ssh forward only for an allow-list: a stranger (198.51.100.77) is dropped on purpose; remote desktop only after a knock at udp 7000"
  typical
  ip -n client addr add 198.51.100.77/24 dev eth0
  gw ipset create admins hash:net
  gw ipset add admins 198.51.100.0/28
  rules <<'EOF'
-P INPUT DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p udp --dport 7000 -m recent --name knock --set -j DROP
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -d 192.168.1.10 -p tcp --dport 22 -m set --match-set admins src -j ACCEPT
-A FORWARD -d 192.168.1.10 -p tcp --dport 3389 -m recent --name knock --rcheck --seconds 60 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p tcp -m multiport --dports 22,3389 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 22
  serve tcp server 3389
  ask client tcp 198.51.100.1 22 3 from=198.51.100.10
  ask client tcp 198.51.100.1 22 2 from=198.51.100.77
  ask client udp 198.51.100.1 7000 0.5 from=198.51.100.10 answer=no
  ask client tcp 198.51.100.1 3389 2 from=198.51.100.10 after=3
}

shop-on-two-lines() {
  healthy "clients come by both uplinks, answers are sent back by marks where they came from; the default route is only one of them"
  two_uplinks
  set_ gw net.ipv4.conf.{all,wan0,wan2}.rp_filter=2
  gw ip route add default via 198.18.2.1 table 102
  gw ip rule add fwmark 2 table 102
  rules <<'EOF'
-t mangle -A PREROUTING -i wan2 -m conntrack --ctstate NEW -j CONNMARK --set-mark 2
-t mangle -A PREROUTING -i lan0 -j CONNMARK --restore-mark
-t nat -A PREROUTING -i wan+ -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wan2 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp inet 80
  ask inet tcp 198.51.100.2 443 5
  ask inet tcp 198.18.2.2 443 5
  ask pc tcp 203.0.113.10 80 3
}

office-with-lte-stick() {
  healthy "the backup uplink (wwan0) has no carrier and its default route a higher metric; its masquerade rule counts nothing"
  one_uplink
  node lte
  link gw wwan0 100.72.3.2/30 lte eth0 100.72.3.1/30
  gw ip route add default via 100.72.3.1 metric 700
  ip -n lte link set eth0 down
  set_ gw net.ipv4.conf.all.ignore_routes_with_linkdown=1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-t nat -A POSTROUTING -o wwan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve udp inet 53
  ask inet tcp 198.51.100.2 443 5
  ask pc udp 203.0.113.10 53 5
}

old-docker-host() {
  healthy "left-overs: a network without containers (br-9d7e, no carrier), a published port 9000 that nobody uses, a hashlimit of 100/s per client that does not bite"
  docker_host
  node web
  on_bridge docker0 web 172.17.0.2/16 172.17.0.1
  docker_publish docker0 tcp 80 172.17.0.2 8080
  docker_publish docker0 tcp 9000 172.17.0.2 9000
  a_bridge br-9d7e 172.19.0.1/16
  docker_network br-9d7e 172.19.0.0/16
  rules <<'EOF'
-A DOCKER-USER -i eth0 -p tcp --syn -m hashlimit --hashlimit-name web --hashlimit-mode srcip --hashlimit-above 100/sec --hashlimit-burst 200 -j DROP
-A DOCKER-USER -j RETURN
EOF
  serve tcp web 8080
  serve tcp web 9000
  serve tcp client 443
  ask client tcp 198.51.100.1 80 30
  ask web tcp 198.51.100.10 443 2
}

gateway-with-bogon-routes() {
  healthy "private networks that are not used are blackholed on purpose so that they do not leak to the provider; a PC's old driver still polls a printer there (one-way, unanswered)"
  one_uplink
  gw ip route add blackhole 10.0.0.0/8
  gw ip route add blackhole 172.16.0.0/12
  gw ip route add blackhole 192.168.0.0/16
  ruleset <<'EOF'
table ip nat {
  chain post { type nat hook postrouting priority srcnat;
    oifname "wan0" ip saddr 192.168.1.0/24 snat to 198.51.100.2
  }
}
EOF
  serve tcp inet 443
  ask pc tcp 203.0.113.10 443 5
  ask pc ping 203.0.113.10 - 2
  ask pc udp 10.99.0.5 161 1 answer=no
}

tuned-nat-instance() {
  healthy "many conntrack settings changed: shorter timeouts, liberal TCP, no pick-up of running connections; all above what the clients need"
  one_uplink
  set_ gw net.netfilter.nf_conntrack_tcp_timeout_{established=7200,time_wait=30,fin_wait=20,close_wait=20} net.netfilter.nf_conntrack_udp_timeout{=15,_stream=60}
  set_ gw net.netfilter.nf_conntrack_tcp_{loose=0,be_liberal=1} net.ipv4.ip_local_port_range='1024 65535' net.netfilter.nf_conntrack_acct=1
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 5432 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE --random-fully
EOF
  serve tcp server 5432
  serve tcp inet 443
  serve udp inet 123
  ask inet tcp 198.51.100.2 5432 1 requests=4 gap=4
  ask pc tcp 203.0.113.10 443 30
  ask pc udp 203.0.113.10 123 3
}

log-collector() {
  healthy "syslog and NetFlow are forwarded to a collector, which never answers: one-way UDP"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p udp -m multiport --dports 514,2055 -j ACCEPT
-t nat -A PREROUTING -i wan0 -p udp --dport 514 -j DNAT --to-destination 192.168.1.10
-t nat -A PREROUTING -i wan0 -p udp --dport 2055 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve udp server 514 answer=no
  serve udp server 2055 answer=no
  serve tcp client 443
  ask client udp 198.51.100.1 514 5 answer=no
  ask client udp 198.51.100.1 2055 20 port=40001 up=1000
  ask pc tcp 198.51.100.10 443 3
}

monitored-web-server() {
  healthy "a load balancer's checks end each connection with RST; a crawler gives up after 0.6 s on a report that takes 1.5 s (its times out; a patient client gets it)"
  typical
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A PREROUTING -i wan0 -p tcp --dport 81 -j DNAT --to-destination 192.168.1.10:8081
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  serve tcp server 8081 delay=1.5
  ask client tcp 198.51.100.1 80 5
  ask client tcp 198.51.100.1 80 4 abort=1
  ask client tcp 198.51.100.1 81 1 timeout=0.6
  ask client tcp 198.51.100.1 81 2 timeout=5
}

cafe-with-guest-wifi() {
  healthy "guests are shaped to 4 Mbit/s (tbf) and the uplink to 20 (htb), both ample for what is sent; guests do not get into the LAN, by rule"
  one_uplink
  node guest
  link gw guest0 192.168.50.1/24 guest wlan0 192.168.50.23/24
  default guest 192.168.50.1
  gw tc qdisc add dev guest0 root tbf rate 4mbit burst 32kb latency 100ms
  gw tc qdisc add dev wan0 root handle 1: htb default 20
  gw tc class add dev wan0 parent 1: classid 1:20 htb rate 20mbit burst 64k quantum 15000
  rules <<'EOF'
-A FORWARD -i guest0 -o lan0 -j REJECT
-A FORWARD -i lan0 -o guest0 -m conntrack --ctstate NEW -j REJECT
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp inet 443
  ask guest tcp 203.0.113.10 443 4 down=20000
  ask pc tcp 203.0.113.10 443 4 up=10000
}

intranet-by-public-name() {
  healthy "hairpin: PCs reach the server in their own network by the public address, with SNAT to gw's inner address"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat;
    ip daddr 198.51.100.1 tcp dport 443 dnat to 192.168.1.10:8443
  }
  chain post { type nat hook postrouting priority srcnat;
    oifname "wan0" masquerade
    ip saddr 192.168.1.0/24 ip daddr 192.168.1.10 tcp dport 8443 ct status dnat snat to 192.168.1.1
  }
}
EOF
  serve tcp server 8443
  ask client tcp 198.51.100.1 443 4
  ask pc tcp 198.51.100.1 443 4
}

ftp-archive() {
  healthy "passive FTP behind DNAT, with the helper assigned by a raw rule and data let through as RELATED only"
  typical
  rules <<'EOF'
-P FORWARD DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i lan0 -j ACCEPT
-A FORWARD -i wan0 -d 192.168.1.10 -p tcp --dport 21 -j ACCEPT
-t raw -A PREROUTING -i wan0 -p tcp --dport 21 -j CT --helper ftp
-t nat -A PREROUTING -i wan0 -p tcp --dport 21 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve ftp server 21
  ask client ftp 198.51.100.1 21 4
}

two-sites-same-network() {
  healthy "both sites are 192.168.1.0/24: each is seen from the other as 10.1.x.0/24, by NETMAP on both ends of the tunnel"
  one_uplink
  router siteb
  node nas
  link gw tun0 10.255.0.1/30 siteb tun0 10.255.0.2/30
  link siteb lan0 192.168.1.1/24 nas eth0 192.168.1.30/24
  default nas 192.168.1.1
  gw ip route add 10.1.2.0/24 via 10.255.0.2
  on siteb ip route add 10.1.1.0/24 via 10.255.0.1
  on siteb iptables -t nat -A PREROUTING -i tun0 -d 10.1.2.0/24 -j NETMAP --to 192.168.1.0/24
  on siteb iptables -t nat -A POSTROUTING -o tun0 -s 192.168.1.0/24 -j NETMAP --to 10.1.2.0/24
  rules <<'EOF'
-t nat -A PREROUTING -i tun0 -d 10.1.1.0/24 -j NETMAP --to 192.168.1.0/24
-t nat -A POSTROUTING -o tun0 -s 192.168.1.0/24 -j NETMAP --to 10.1.1.0/24
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp nas 445
  serve tcp server 445
  serve tcp inet 443
  ask pc tcp 10.1.2.30 445 4
  ask nas tcp 10.1.1.10 445 4
  ask pc tcp 203.0.113.10 443 2
}

kubernetes-node() {
  healthy "a service without endpoints is rejected (nobody uses it), a node port is masqueraded and may go to another node, a pod asks a service on its own node"
  kube_nodes
  set_ gw net.bridge.bridge-nf-call-iptables=1
  rules <<'EOF'
-N KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.44.7/32 -p tcp --dport 9090 -m comment --comment "no_endpoints" -j REJECT
-t nat -N KUBE-NODEPORTS
-t nat -N KUBE-SVC-WEB
-t nat -A KUBE-SERVICES -d 10.96.0.80/32 -p tcp --dport 80 -j KUBE-SVC-WEB
-t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-MARK-MASQ
-t nat -A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-SVC-WEB
-t nat -A KUBE-SVC-WEB -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.244.1.12:8080
-t nat -A KUBE-SVC-WEB -p tcp -j DNAT --to-destination 10.244.2.12:8080
EOF
  serve tcp pod-b 8080
  serve tcp pod-c 8080
  ask client tcp 10.0.0.11 30080 5
  ask pod-a tcp 10.96.0.80 80 5
}

ipv6-with-own-prefix() {
  healthy "the inside uses fd00:1::/64, gw translates the prefix one to one (NETMAP) to 2001:db8:77::/64, which nobody has as an address; ICMPv6 is limited, not forbidden"
  router gw isp
  node inet server
  link isp up0 2001:db8:aa::1/64 inet eth0 2001:db8:aa::10/64
  link isp dn0 2001:db8:1::1/64 gw wan0 2001:db8:1::2/64
  link gw lan0 fd00:1::1/64 server eth0 fd00:1::10/64
  default inet 2001:db8:aa::1
  default gw 2001:db8:1::1
  default server fd00:1::1
  ip -n isp route add 2001:db8:77::/64 via 2001:db8:1::2
  rules <<'EOF'
-6 -t nat -A PREROUTING -i wan0 -d 2001:db8:77::/64 -j NETMAP --to fd00:1::/64
-6 -t nat -A POSTROUTING -o wan0 -s fd00:1::/64 -j NETMAP --to 2001:db8:77::/64
-6 -A INPUT -p icmpv6 --icmpv6-type echo-request -m limit --limit 20/s -j ACCEPT
-6 -A INPUT -p icmpv6 --icmpv6-type echo-request -j DROP
EOF
  serve tcp server 443 bind=
  serve tcp inet 443 bind=
  ask inet tcp 2001:db8:77::10 443 4
  ask server tcp 2001:db8:aa::10 443 4
  ask server ping 2001:db8:aa::10 - 2
}

shop-behind-synproxy() {
  healthy "SYNPROXY before a server with a public address: its SYNs are untracked and its first ACKs INVALID, on purpose; beside it the LAN is masqueraded"
  one_uplink
  node shop
  link gw dmz0 192.0.2.1/28 shop eth0 192.0.2.2/28
  default shop 192.0.2.1
  on isp ip route add 192.0.2.0/28 via 198.51.100.2
  set_ gw net.netfilter.nf_conntrack_tcp_loose=0 net.ipv4.tcp_syncookies=1 net.ipv4.tcp_timestamps=1
  rules <<'EOF'
-t raw -A PREROUTING -i wan0 -d 192.0.2.2 -p tcp --dport 443 --syn -j CT --notrack
-A FORWARD -i wan0 -d 192.0.2.2 -p tcp --dport 443 -m conntrack --ctstate INVALID,UNTRACKED -j SYNPROXY --sack-perm --timestamp --wscale 7 --mss 1460
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j MASQUERADE
EOF
  serve tcp shop 443
  serve tcp inet 443
  ask inet tcp 192.0.2.2 443 6
  ask pc tcp 203.0.113.10 443 3
}

strict-source-filter() {
  healthy "strict rp_filter on gw drops what a laptop sends with its VPN's source address 10.66.6.6 (one-way noise); all else is fine"
  one_uplink
  set_ gw net.ipv4.conf.{all,wan0,lan0}.rp_filter=1
  ip -n pc addr add 10.66.6.6/32 dev lo
  ruleset <<'EOF'
table ip nat {
  chain post { type nat hook postrouting priority srcnat; ip saddr 192.168.1.0/24 oif wan0 masquerade random; }
}
EOF
  serve tcp inet 443
  serve udp inet 53
  ask pc tcp 203.0.113.10 443 5
  ask pc udp 203.0.113.10 53 3
  ask pc udp 203.0.113.10 53 2 from=10.66.6.6 answer=no
}

school-with-proxy() {
  healthy "http is redirected to a proxy on gw, and QUIC (udp 443) rejected on purpose so that browsers fall back to TCP: those datagrams are refused, TCP 443 works"
  one_uplink
  rules <<'EOF'
-t nat -A PREROUTING -i lan0 -p tcp --dport 80 -j REDIRECT --to-ports 3128
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
-A FORWARD -i lan0 -p udp --dport 443 -j REJECT
EOF
  serve tcp gw 3128
  serve tcp inet 443
  serve udp inet 53
  ask pc tcp 203.0.113.10 80 5
  ask pc tcp 203.0.113.10 443 4
  ask pc udp 203.0.113.10 53 2
  ask pc udp 203.0.113.10 443 1
}

two-customers-same-addresses() {
  healthy "two customers both use 10.0.0.2: kept apart by conntrack zones, marks and tables, each with a public address of its own"
  router gw
  node client custa custb
  switch wan
  plug wan client eth0 198.51.100.10/24
  plug wan gw wan0 198.51.100.1/24,198.51.100.11/24,198.51.100.12/24
  link gw c1 10.0.0.1/24 custa eth0 10.0.0.2/24
  link gw c2 10.0.0.1/24 custb eth0 10.0.0.2/24
  default custa 10.0.0.1
  default custb 10.0.0.1
  for i in 1 2; do
    gw ip route add 10.0.0.0/24 dev c$i table $i
    gw ip rule add fwmark $i table $i
    rules <<EOF
-t raw -A PREROUTING -i c$i -j CT --zone $i
-t raw -A PREROUTING -i wan0 -d 198.51.100.1$i -j CT --zone $i
-t mangle -A PREROUTING -i c$i -j MARK --set-mark $i
-t mangle -A PREROUTING -i wan0 -d 198.51.100.1$i -j MARK --set-mark $i
-t nat -A POSTROUTING -o wan0 -m mark --mark $i -j SNAT --to-source 198.51.100.1$i
EOF
  done
  serve tcp client 443
  ask custa tcp 198.51.100.10 443 5
  ask custb tcp 198.51.100.10 443 5
}

office-behind-tunnel-provider() {
  healthy "the provider's path takes 1400 bytes: MSS is clamped to 1360; a ping of 1500 bytes with DF (someone's MTU probe) is told 'frag needed', as it should be"
  one_uplink
  ip -n isp route replace 203.0.113.0/24 dev up0 src 203.0.113.1 mtu 1400
  rules <<'EOF'
-t mangle -A FORWARD -o wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
-t mangle -A FORWARD -i wan0 -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
-t nat -A PREROUTING -i wan0 -p tcp --dport 443 -j DNAT --to-destination 192.168.1.10
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 443
  serve tcp inet 443
  ask inet tcp 198.51.100.2 443 3 down=30000
  ask pc tcp 203.0.113.10 443 3 up=30000
  ask pc ping 203.0.113.10 - 1 up=1472 pmtu=do
}
