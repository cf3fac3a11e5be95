# Letters into and out of a Dovecot: `mail.py IMAP-PORT POP3-PORT`. Each session begins in a process that reads the login,
# and goes on in one that has the mailbox, with what the client has sent meanwhile.
import hashlib
import imaplib
import poplib
import sys
import threading

IMAP, POP3 = map(int, sys.argv[1:3])
LETTERS = 12


def letter(box, n):
    return b"Subject: %d-%d\r\n\r\n" % (box, n) + b"line %d\r\n" % n * (n * n * 60)


def session():
    imap = imaplib.IMAP4("127.0.0.1", IMAP)
    imap.login("joe", "pw")
    return imap


def put(box):
    imap = session()
    imap.create(f"box{box}")
    for n in range(LETTERS):
        assert imap.append(f"box{box}", None, None, letter(box, n))[0] == "OK"
    imap.logout()


threads = [threading.Thread(target=put, args=(box,)) for box in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

imap = session()
for box in range(4):
    print(imap.select(f"box{box}"), imap.search(None, "SUBJECT", '"-1"'))
    got = [imap.fetch(str(n + 1), "(RFC822)")[1][0][1] for n in range(LETTERS)]
    print("right:", sum(got[n] == letter(box, n) for n in range(LETTERS)))
imap.append("INBOX", None, None, letter(9, 20))
imap.logout()

# Commands that are sent at once, before the login is through.
imap = imaplib.IMAP4("127.0.0.1", IMAP)
imap.send(b"a1 LOGIN joe pw\r\na2 SELECT box3\r\na3 FETCH 12 RFC822\r\na4 LOGOUT\r\n")
print("at once:", letter(3, 11) in imap.file.read())

pop3 = poplib.POP3("127.0.0.1", POP3)
pop3.user("joe")
pop3.pass_("pw")
print(pop3.stat()[0], hashlib.sha256(b"\r\n".join(pop3.retr(1)[1])).hexdigest())
pop3.quit()
# Last: Dovecot has those wait that log in after it.
try:
    imaplib.IMAP4("127.0.0.1", IMAP).login("joe", "bad")
except imaplib.IMAP4.error as error:
    print(error)
