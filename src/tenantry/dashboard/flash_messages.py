"""Messages that a page shows once, after a form or a visit to the provider."""

from enum import StrEnum


class FlashMessage(StrEnum):
    """Messages that a page shows once, at its top, about the form that led to it."""

    ORGANIZATION_CREATED = "Organization created. You are its owner."
    ORGANIZATION_SAVED = "Organization saved."
    ORGANIZATION_DELETED = "Organization deleted. Its members and API keys have no access anymore."
    ADDRESS_SAVED = "Billing address saved."
    ADDRESS_UNCONFIRMED = "Billing address saved. To confirm it, open the link in the mail to it."
    MEMBER_ADDED = "Member added."
    MEMBER_INVITED = "Invitation created. The user becomes a member when they accept it."
    INVITATION_SENT = "Invitation on its way. It is open for seven days."
    INVITATION_WITHDRAWN = "Invitation withdrawn."
    INVITATION_DECLINED = "Invitation declined."
    INVITATION_ACCEPTED = "Invitation accepted. You are now a member of this organization."
    ORGANIZATION_LEFT = "You left the organization."
    MEMBER_CHANGED = "Role changed. It applies from the next request."
    MEMBER_REMOVED = "Member removed. Their next request is rejected."
    TRANSFERRED = "Ownership transferred."
    PROJECT_DELETED = "Project deleted."
    KEY_EXISTS = "You submitted this form before. It created this key, and no second one."
    KEY_NOT_REPLACED = (
        "No key was created: this key already has a replacement, or was not reported as leaked."
    )
    KEY_SAVED = "Key saved. The changes apply from its next request."
    OTHERS_SIGNED_OUT = "All other sessions are signed out."
    CONFIRMATION_SENT = "Confirmation sent to the owner's address."
    CONFIRMATION_LIMITED = (
        "Not sent: this address was sent several confirmations already. Try again later."
    )
    ADDRESS_VERIFIED = "The owner's address is already verified."
    CUSTOMER_SUSPENDED = "Organization suspended. Its next requests are refused, with the reason."
    CUSTOMER_RESUMED = "Organization resumed. Its next requests are accepted."
    ADDRESS_MARKED = "The owner's address is verified."
    CUSTOMER_LINKED = "Customer linked. Its events count for this organization."
    CUSTOMER_MOVED = "Customer moved, with its events."
    CUSTOMER_UNLINKED = "Customer unlinked. Its events no longer count for this organization."
    GRANT_SAVED = "Grant saved. It counts from the next request."
    GRANT_ENDED = "Grant ended."
    CUSTOMER_PLACED = "Customer linked. Its events count for the organization from now on."
    WEBHOOK_ENABLED = "Endpoint enabled. A worker sends what was held within seconds."
    WEBHOOK_RESENT = "A worker sends these events again within seconds."
    CHECKED_OUT = "Checkout complete. The plan changes when the provider's event arrives, usually within seconds."
    CHECKOUT_LEFT = "Checkout canceled. Nothing was ordered."
    RUN_JOINED = "No second run was started: this page shows the one that came first."
    PORTAL_LEFT = (
        "Changes made at the provider take effect when its event arrives, usually within seconds."
    )
