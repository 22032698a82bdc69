# shellcheck shell=bash
# Two hosts that show how rounds are written.

missing-backend() {
  fault "a third of the web connections time out" "DNAT to three backends, of which 192.168.1.12 does not exist"
  typical
  ip -n server addr add 192.168.1.11/24 dev eth0
  rules <<'EOF'
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -m statistic --mode nth --every 3 --packet 0 -j DNAT --to-destination 192.168.1.10:8080
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -m statistic --mode nth --every 2 --packet 0 -j DNAT --to-destination 192.168.1.11:8080
-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.12:8080
-t nat -A POSTROUTING -o wan0 -j MASQUERADE
EOF
  serve tcp server 8080
  ask client tcp 198.51.100.1 80 8
}

plain-gateway() {
  healthy "nothing: a web server behind DNAT, and a PC that pings"
  typical
  ruleset <<'EOF'
table ip nat {
  chain pre { type nat hook prerouting priority dstnat; iifname wan0 tcp dport 80 dnat to 192.168.1.10:8080; }
  chain post { type nat hook postrouting priority srcnat; oifname wan0 masquerade; }
}
EOF
  serve tcp server 8080
  ask client tcp 198.51.100.1 80 8
  ask pc ping 198.51.100.10 - 2
}
